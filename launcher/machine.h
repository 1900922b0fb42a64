/* machine.h - this machine and its network: names, routes, interfaces, ports and who holds them. */
#ifndef LAUNCHER_MACHINE_H
#define LAUNCHER_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "solo.h"

struct address {
    struct sockaddr_storage bytes;
    socklen_t size;
};

/* tcp://HOST:PORT, HOST[:PORT], [v6]:PORT; port 29400 if absent. False: *why says what. */
bool machine_url_parse(const char *text, struct solo_url *out, const char **why);
char *machine_url_text(const char *host, unsigned port); /* "tcp://[::1]:29400" */

/* False: *why has the resolver's words. */
bool machine_resolve(const struct solo_url *url, struct address *out, const char **why);
char *machine_numeric(const struct address *address);
bool machine_is_loopback(const struct address *address);
bool machine_is_local(const struct address *address); /* can be bound here */

/* The numeric source address of the route to `to`, NULL if there is none; sends nothing. */
char *machine_route_source(const struct address *to);
/* The interface that has this numeric address, NULL if none has. */
char *machine_interface(const char *numeric);

/* A listening socket at the address, or -errno. Survives exec only if `keep`. */
int machine_listen(const struct address *address, bool keep);
void machine_close(int fd);
/* "pid 123 (python3 train.py)" of whoever listens at the port, NULL if that cannot be seen. */
char *machine_port_holder(uint16_t port);
/* A port that is free now; 0: none was found. */
uint16_t machine_free_port(void);

const char *machine_name(void);

#endif
