/* addr.h - names and numbers of hosts. solo_url_parse, solo_route_address and
 * solo_is_loopback of solo.h are here too. */
#ifndef SOLO_OS_ADDR_H
#define SOLO_OS_ADDR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "os/loop.h"
#include "solo.h"

#define ADDR_MAX      8u  /* addresses kept of one name */
#define ADDR_TEXT_MAX 64u /* "[v6%scope]:port" with its final zero */

struct addr {
    struct sockaddr_storage bytes;
    socklen_t size;
};

struct addr_list {
    struct addr at[ADDR_MAX];
    uint32_t count;
};

/* "10.0.0.4:29400", "[::1]:29400"; v4 mapped into v6 is written as v4. */
void addr_text(const struct addr *addr, char out[ADDR_TEXT_MAX]);
void addr_host_text(const struct addr *addr, char out[ADDR_TEXT_MAX]); /* without the port */
uint16_t addr_port(const struct addr *addr);
bool addr_is_loopback(const struct addr *addr);

/* A numeric host; no name is looked up. SOLO_EINVAL otherwise. */
int addr_numeric(const struct solo_url *url, struct addr *out);

/* The host is this one: "localhost", a loopback address, or an address of one of its interfaces.
 * Names are not looked up: then false. */
bool addr_is_this_host(const struct solo_url *url);

/* Any thread. Looks the name up, waiting at most until the deadline; a numeric host does not
 * wait. SOLO_ENOENT: no such name; SOLO_ETIMEDOUT: the resolver does not answer. */
int addr_resolve(const struct solo_url *url, uint64_t deadline_us, struct addr_list *out);

/* The same for the loop thread: never blocks, calls back on the loop. The look-up runs on a
 * thread of its own (at most ADDR_LOOKUPS_MAX at a time, process-wide: the resolver cannot be
 * interrupted, so one that hangs is left behind). */
#define ADDR_LOOKUPS_MAX 16u
typedef void (*addr_found_fn)(void *context, int rc, const struct addr_list *found);
struct addr_query;
int addr_query_start(struct loop *loop, const struct solo_url *url, uint64_t deadline_us,
                     addr_found_fn fn, void *context, struct addr_query **out);
void addr_query_cancel(struct addr_query *query); /* fn is not called any more; NULL is allowed */

#endif
