/* handle.h - one merge between the thread that waits for it and the loop that does it.
 *
 * Two owners, each drops it once: the caller in solo_wait, the engine when it has finished
 * it. So a handle outlives solo_close until its caller has heard of the end. */
#ifndef SOLO_NODE_HANDLE_H
#define SOLO_NODE_HANDLE_H

#include <stdatomic.h>

#include "os/thread.h"
#include "solo.h"

struct solo_handle {
    struct latch latch;
    atomic_uint owners;
    struct solo_result result; /* written before the latch is set */
};

int handle_new(struct solo_handle **out); /* with both owners */
void handle_drop(struct solo_handle *handle);

/* The engine's end of it: sets the outcome and drops. `result` may be NULL when rc < 0. */
void handle_finish(struct solo_handle *handle, int rc, const char *text,
                   const struct solo_result *result);

#endif
