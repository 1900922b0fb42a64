/* host.h - this machine and its network: names, routes, interfaces, ports and who holds them. */
#ifndef LAUNCHER_HOST_H
#define LAUNCHER_HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "engine.h"

struct address {
    struct sockaddr_storage bytes;
    socklen_t size;
};

/* tcp://HOST:PORT, HOST[:PORT], [v6]:PORT; port 29400 if absent. False: *why says what. */
bool host_url_parse(const char *text, struct solo_url *out, const char **why);
char *host_url_text(const char *host, unsigned port); /* "tcp://[::1]:29400" */

/* False: *why has the resolver's words. */
bool host_resolve(const struct solo_url *url, struct address *out, const char **why);
char *host_numeric(const struct address *address);
bool host_is_loopback(const struct address *address);
bool host_is_local(const struct address *address); /* can be bound here */

/* The numeric source address of the route to `to`, NULL if there is none; sends nothing. */
char *host_route_source(const struct address *to);
/* The interface that has this numeric address, NULL if none has. */
char *host_interface(const char *numeric);

/* A listening socket at the address, or -errno. Survives exec only if `keep`. */
int host_listen(const struct address *address, bool keep);
void host_close(int fd);
/* "pid 123 (python3 train.py)" of whoever listens at the port, NULL if that cannot be seen. */
char *host_port_holder(uint16_t port);
/* A port that is free now; 0: none was found. */
uint16_t host_free_port(void);

const char *host_name(void);

#endif
