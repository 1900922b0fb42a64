#include "os/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "os/clock.h"
#include "os/fork.h"

/* Idle so long, then probed so often and so many times: a vanished host is noticed in 20 s. */
enum { KEEPALIVE_IDLE_S = 8, KEEPALIVE_EVERY_S = 4, KEEPALIVE_COUNT = 3 };

static int set_int(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

int sock_options(int fd)
{
    if (set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1) < 0) {
        return err_errno("TCP_NODELAY");
    }
    /* Old kernels may lack these; the connection works without. */
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)SOCK_USER_TIMEOUT_MS);
    set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (int)SOCK_UNSENT_BYTES);
    return 0;
}

/* BBR takes the most that was ever delivered at once for the path's rate and the least delay that
 * was ever seen for its length, and lets about their product travel. On a short path both are
 * wrong where this host's own shaper lets bursts through at the speed of the wire: of a link of
 * 200 Mbit/s it believed 20 Gbit/s and 20 us. Flows of equal right then get unequal shares for
 * seconds, and a merge waits for the last of them: among four nodes 1.13 to 1.34 of the line's
 * time, with cubic 1.05. The price: where the narrow place is beyond this host and has a queue
 * far longer than the path, cubic fills it, and is the slower one (1.2 to 1.1 with 100 ms). */
#define SHORT_PATH_US 1000u

static bool suits(const char *control, uint32_t rtt_us)
{
    return strncmp(control, "bbr", 3) != 0 || rtt_us == 0 || rtt_us >= SHORT_PATH_US;
}

/* SOLO_CONGESTION, for whom the two numbers of a first round trip judge wrongly: "host", or the name
 * of one. false: not given, or not to be had here. */
static bool take_wanted(int fd)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *wanted = getenv("SOLO_CONGESTION");
    if (!wanted || !*wanted || strcmp(wanted, "auto") == 0) {
        return false;
    }
    bool taken = strcmp(wanted, "host") == 0 || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted,
                                                           (socklen_t)strlen(wanted)) == 0;
    if (!taken && !atomic_flag_test_and_set(&told)) {
        log_line(SOLO_LOG_WARN,
                 "SOLO_CONGESTION=%s is ignored: %s. Give auto, host, or one of those that `sysctl "
                 "net.ipv4.tcp_allowed_congestion_control` names",
                 wanted, strerror(errno));
    }
    return taken;
}

void sock_suit_path(int fd)
{
    char control[16] = "";
    socklen_t size = sizeof control - 1;
    if (take_wanted(fd)) {
        return;
    }
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &size) == 0 &&
        !suits(control, sock_rtt_us(fd)) &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) < 0) {
        /* Which ones a process may choose is up to the host; this one it always may. */
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    }
}

/* ---- listening -------------------------------------------------------------------------- */

static bool is_every_address(const char *host)
{
    return !*host || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
           strcmp(host, "::") == 0;
}

static void every_address(uint16_t port, bool v6, struct addr *out)
{
    *out = (struct addr){0};
    if (v6) {
        struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&out->bytes, &any, sizeof any);
        out->size = sizeof any;
    } else {
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&out->bytes, &any, sizeof any);
        out->size = sizeof any;
    }
}

/* Leaves errno as the failing call set it. */
static int bind_and_listen(const struct addr *addr)
{
    int fd = socket(addr->bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    fork_hide(fd);
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (addr->bytes.ss_family == AF_INET6) {
        set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    }
    if (bind(fd, (const struct sockaddr *)&addr->bytes, addr->size) < 0 ||
        listen(fd, SOCK_BACKLOG) < 0) {
        int number = errno;
        close(fd);
        errno = number;
        return -1;
    }
    return fd;
}

static uint16_t free_port(void)
{
    struct addr any, bound;
    every_address(0, false, &any);
    int fd = bind_and_listen(&any);
    uint16_t port = fd >= 0 && sock_local(fd, &bound) == 0 ? addr_port(&bound) : 0;
    if (fd >= 0) {
        close(fd);
    }
    return port;
}

static int listen_error(const struct solo_url *url, const struct addr *addr)
{
    char text[ADDR_TEXT_MAX], holder[SOLO_NAME_MAX];
    int number = errno;
    addr_text(addr, text);
    switch (number) {
    case EADDRINUSE:
        sock_holder(url->port, holder, sizeof holder);
        return err_set(SOLO_EINUSE, "port %u is in use%s%s; port %u is free", url->port,
                       *holder ? " by " : "", holder, free_port());
    case EADDRNOTAVAIL:
        return err_set(SOLO_EINVAL, "%s is not an address of this host; see `ip addr`", text);
    case EACCES:
        return err_set(SOLO_EINVAL, "only root may listen on port %u; take one above 1023",
                       url->port);
    default:
        errno = number;
        return err_errno("cannot listen on %s", text);
    }
}

#define LISTEN_LOOKUP_US 5000000u

int sock_listen(const struct solo_url *url, int *fd_out, uint16_t *port_out)
{
    struct addr_list list = {.count = 1};
    int fd = -1;
    if (is_every_address(url->host)) {
        every_address(url->port, true, &list.at[0]);
        fd = bind_and_listen(&list.at[0]);
        if (fd < 0 && errno == EAFNOSUPPORT) { /* a kernel without IPv6 */
            every_address(url->port, false, &list.at[0]);
            fd = bind_and_listen(&list.at[0]);
        }
    } else {
        TRY(addr_resolve(url, clock_us() + LISTEN_LOOKUP_US, &list));
        for (uint32_t i = 0; fd < 0 && i < list.count; i++) {
            fd = bind_and_listen(&list.at[i]);
        }
    }
    if (fd < 0) {
        return listen_error(url, &list.at[0]);
    }
    struct addr bound;
    int rc = sock_local(fd, &bound);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *fd_out = fd;
    *port_out = addr_port(&bound);
    return 0;
}

int sock_accept(int listen_fd, int *fd_out, struct addr *from_out)
{
    struct addr from = {.size = sizeof from.bytes};
    int fd = accept4(listen_fd, (struct sockaddr *)&from.bytes, &from.size,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        bool none = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        return none ? SOLO_EAGAIN : err_errno("accept (limit: ulimit -n)");
    }
    fork_hide(fd);
    *fd_out = fd;
    *from_out = from;
    return 0;
}

/* ---- connecting ------------------------------------------------------------------------- */

int sock_connect(const struct addr *to, int *fd_out, enum solo_reach *reach_out)
{
    *reach_out = SOLO_NO_ROUTE;
    int fd = socket(to->bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return err_errno("socket (limit: ulimit -n)");
    }
    fork_hide(fd);
    int rc = sock_options(fd);
    if (rc == 0 && connect(fd, (const struct sockaddr *)&to->bytes, to->size) < 0 &&
        errno != EINPROGRESS) {
        rc = sock_connect_error(errno, to, reach_out);
    }
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *fd_out = fd;
    return 0;
}

int sock_connect_error(int number, const struct addr *to, enum solo_reach *reach_out)
{
    char text[ADDR_TEXT_MAX];
    addr_text(to, text);
    switch (number) {
    case ECONNREFUSED:
        *reach_out = SOLO_CONN_REFUSED;
        return err_set(SOLO_EREFUSED,
                       "%s refused the connection: the host is there, but nothing "
                       "listens on that port (not started yet, or another port?)",
                       text);
    case ETIMEDOUT:
        *reach_out = SOLO_NO_ANSWER;
        return err_set(SOLO_ETIMEDOUT,
                       "%s does not answer: the host is down, or a firewall drops "
                       "packets to that port",
                       text);
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EACCES:
    case EPERM:
    case EINVAL:
        *reach_out = SOLO_NO_ROUTE;
        errno = number;
        return err_errno("no way to %s from here (see `ip route get`)", text);
    default:
        *reach_out = SOLO_NO_ANSWER;
        errno = number;
        return err_errno("cannot connect to %s", text);
    }
}

int sock_connected(int fd, const struct addr *to, enum solo_reach *reach_out)
{
    int number = 0;
    socklen_t size = sizeof number;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size) < 0) {
        number = errno;
    }
    return number == 0 ? 0 : sock_connect_error(number, to, reach_out);
}

/* ---- what the kernel knows -------------------------------------------------------------- */

int sock_local(int fd, struct addr *out)
{
    *out = (struct addr){.size = sizeof out->bytes};
    int rc = getsockname(fd, (struct sockaddr *)&out->bytes, &out->size);
    return rc < 0 ? err_errno("getsockname") : 0;
}

uint32_t sock_rtt_us(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_rtt : 0;
}

#define SEND_BYTES_GUESS (4u << 20) /* the kernel's default of tcp_wmem's maximum */

/* The third number of the file. */
uint64_t sock_send_bytes_max(void)
{
    char line[128] = "";
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_wmem", "re");
    if (file) {
        line[fread(line, 1, sizeof line - 1, file)] = 0;
        fclose(file);
    }
    char *at = line;
    uint64_t most = 0;
    for (int i = 0; i < 3; i++) {
        most = strtoull(at, &at, 10);
    }
    return most ? most : SEND_BYTES_GUESS;
}

void sock_close(int fd)
{
    if (fd > 0) {
        close(fd);
    }
}

void sock_reset(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}
