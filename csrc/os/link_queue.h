/* link_queue.h - frames that wait for a stream of their link. Loop thread only; grows to
 * LINK_SENDS_MAX and no further. */
#ifndef SOLO_OS_LINK_QUEUE_H
#define SOLO_OS_LINK_QUEUE_H

#include "os/link.h"

struct link_entry {
    struct frame frame;
    const void *payload; /* borrowed */
    size_t size;
    uint64_t tag;
};

struct link_queue { /* zero: empty */
    struct link_entry *entries;
    uint32_t capacity, first, count;
};

int link_queue_push(struct link_queue *queue, const struct frame *frame, const void *payload,
                    size_t size, uint64_t tag);                /* SOLO_EAGAIN, SOLO_ENOMEM */
struct link_entry *link_queue_first(struct link_queue *queue); /* NULL: empty */
void link_queue_pop(struct link_queue *queue);
void link_queue_forget(struct link_queue *queue, const void *base, size_t size); /* drops these */
void link_queue_deinit(struct link_queue *queue);

#endif
