/* sock.h - TCP sockets as this library wants them: non-blocking, closed on exec, no delay.
 *
 * Buffers are never set: a set buffer ends the kernel's autotuning. */
#ifndef SOLO_OS_SOCK_H
#define SOLO_OS_SOCK_H

#include "os/addr.h"

#define SOCK_BACKLOG      512
#define SOCK_UNSENT_BYTES (256u << 10) /* TCP_NOTSENT_LOWAT: more than this never waits unsent */
#define SOCK_USER_TIMEOUT_MS                                                                       \
    20000u /* unacknowledged, or the window shut, for so long: it is dead */

/* Listens on url->host ("", "*", "0.0.0.0", "::": every address, v4 and v6) and port (0: any
 * free one; *port_out says which). SOLO_EINUSE: the text names who holds the port, where that
 * can be read, and a free port. Gives *fd_out. */
int sock_listen(const struct solo_url *url, int *fd_out, uint16_t *port_out);

/* Begins to connect. Gives *fd_out, which is writable when the outcome is known. An error that
 * is known at once is told as sock_connected does. */
int sock_connect(const struct addr *to, int *fd_out, enum solo_reach *reach_out);

/* The outcome: 0, or an error whose text tells refused, unreachable and unanswered apart, with
 * *reach_out saying which. */
int sock_connected(int fd, const struct addr *to, enum solo_reach *reach_out);

/* The same words for an errno; what sock_connect says of one that fails at once. */
int sock_connect_error(int number, const struct addr *to, enum solo_reach *reach_out);

/* One waiting connection. SOLO_EAGAIN: none. Gives *fd_out. */
int sock_accept(int listen_fd, int *fd_out, struct addr *from_out);

int sock_options(int fd); /* what sock_connect sets; for an accepted one, when it is to stay */
/* As soon as it is connected, while only that round trip was measured: on a path shorter than 1 ms
 * a loss-based congestion control in place of BBR. SOLO_CONGESTION in the environment decides
 * otherwise: "host" leaves the host's, any other name is that of the one to take. */
void sock_suit_path(int fd);
int sock_local(int fd, struct addr *out);
uint32_t sock_rtt_us(int fd);       /* smoothed, as the kernel measured it; 0: unknown */
uint64_t sock_send_bytes_max(void); /* the most one TCP stream may have in flight (tcp_wmem) */
void sock_close(int fd);            /* of none (0 or less): nothing */
void sock_reset(int fd);            /* closes with RST: for aborts alone */

/* Who listens on this TCP port on this host, in words ("pid 4711 (python3)"); "" if it cannot
 * be read. */
void sock_holder(uint16_t port, char *out, size_t size);

#endif
