/* dial.h - from an address to a connected socket, on the loop: looks the name up, tries every
 * address it has, each within its share of the time.
 *
 * Threads: loop thread only. */
#ifndef SOLO_OS_DIAL_H
#define SOLO_OS_DIAL_H

#include "os/addr.h"

struct dial;

/* 0 and a descriptor, which is the callee's; or an error with its text, and how far it got. */
typedef void (*dial_fn)(void *context, int rc, int fd, const struct addr *to,
                        enum solo_reach reach);

/* Calls fn once from the loop, at the latest at the deadline; the dial frees itself before that.
 * Gives *out for dial_cancel alone. loopback_only: SOLO_EAUTH for any other address. */
int dial_start(struct loop *loop, const struct solo_url *to, bool loopback_only,
               uint64_t deadline_us, dial_fn fn, void *context, struct dial **out);
void dial_cancel(struct dial *dial); /* fn is not called any more; NULL is allowed */

#endif
