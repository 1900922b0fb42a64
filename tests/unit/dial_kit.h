/* dial_kit.h - a connected socket, waited for. */
#ifndef SOLO_TESTS_DIAL_KIT_H
#define SOLO_TESTS_DIAL_KIT_H

#include <poll.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/sock.h"

/* Gives *fd_out; within 5 s. */
static inline int connect_to(const struct solo_url *url, int *fd_out, enum solo_reach *reach_out)
{
    struct addr_list list;
    int rc = addr_resolve(url, clock_us() + 5000000, &list);
    rc = rc < 0 ? rc : sock_connect(&list.at[0], fd_out, reach_out);
    if (rc < 0) {
        return rc;
    }
    struct pollfd one = {.fd = *fd_out, .events = POLLOUT};
    rc =
        poll(&one, 1, 5000) == 1 ? sock_connected(*fd_out, &list.at[0], reach_out) : SOLO_ETIMEDOUT;
    if (rc < 0) {
        close(*fd_out);
        return rc;
    }
    *reach_out = SOLO_REACHED;
    return 0;
}

#endif
