/* ipv6.h - whether this machine has ::1 at all: many containers do not. */
#ifndef SOLO_TESTS_IPV6_H
#define SOLO_TESTS_IPV6_H

#include <stdio.h>
#include <unistd.h>

#include "os/sock.h"

static inline bool has_ipv6(void)
{
    struct solo_url url = {.host = "::1"};
    int fd = -1;
    uint16_t port;
    if (sock_listen(&url, &fd, &port) < 0) {
        fprintf(stderr, "  skipped: no ::1 on this machine\n");
        return false;
    }
    close(fd);
    return true;
}

#endif
