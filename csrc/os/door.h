/* door.h - one listening port, and its twin for shared memory on this host: accepts, bounds who
 * has not proved the token yet, and hands over connections that have said their first frame.
 *
 * Threads: loop thread only. */
#ifndef SOLO_OS_DOOR_H
#define SOLO_OS_DOOR_H

#include "os/conn.h"

/* Connections before their first frame at a time. One more closes the oldest of them: silent
 * ones do not keep honest ones out, who need a round trip or two. */
#define DOOR_PENDING_MAX 64u

struct door;

struct door_calls {
    /* A proved connection and its first frame (at most CONN_INBOX_MAX; valid during the call).
     * Take it with conn_adopt and return 0; a negative code with its text closes it (nothing is sent: to
     * tell the peer, adopt it, conn_send_copy, conn_finish). */
    int (*admit)(void *context, struct conn *conn, const struct frame *first, const void *payload);
    /* Somebody who was not let in, by the door or by admit, and why. May be NULL. */
    void (*refused)(void *context, const char *peer, int rc, const char *text);
};

struct door_config {
    struct loop *loop;
    const char *job_id, *token; /* borrowed while the door, and what it admitted, is open */
    bool insecure;
    uint32_t roles;    /* 1u << HELLO_... */
    uint64_t hello_us; /* until the first frame; 0: CONN_HELLO_US */
    const struct door_calls *calls;
    void *context;
    int listen_fd; /* of sock_listen; taken, also on an error */
};

int door_open(const struct door_config *config, struct door **out); /* gives *out: door_close */
void door_close(struct door *door); /* admitted connections live on; NULL is allowed */
uint16_t door_port(const struct door *door);
uint32_t door_pending(const struct door *door);

#endif
