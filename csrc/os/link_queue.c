#include "os/link_queue.h"

#include <stdlib.h>

#include "base/err.h"

enum { START = 64 };

static int grow(struct link_queue *queue)
{
    uint32_t capacity = queue->capacity ? queue->capacity * 2 : START;
    if (capacity > LINK_SENDS_MAX) {
        return err_set(SOLO_EAGAIN, "%u frames wait in this link already", queue->count);
    }
    struct link_entry *entries = malloc(capacity * sizeof *entries);
    if (!entries) {
        return err_set(SOLO_ENOMEM, "no memory for %u waiting frames", capacity);
    }
    for (uint32_t i = 0; i < queue->count; i++) {
        entries[i] = queue->entries[(queue->first + i) % queue->capacity];
    }
    free(queue->entries);
    queue->entries = entries;
    queue->capacity = capacity;
    queue->first = 0;
    return 0;
}

int link_queue_push(struct link_queue *queue, const struct frame *frame, const void *payload,
                    size_t size, uint64_t tag)
{
    if (queue->count == queue->capacity) {
        TRY(grow(queue));
    }
    uint32_t at = (queue->first + queue->count++) % queue->capacity;
    queue->entries[at] = (struct link_entry){*frame, payload, size, tag};
    return 0;
}

struct link_entry *link_queue_first(struct link_queue *queue)
{
    return queue->count > 0 ? &queue->entries[queue->first] : NULL;
}

void link_queue_pop(struct link_queue *queue)
{
    queue->first = (queue->first + 1) % queue->capacity;
    queue->count--;
}

void link_queue_forget(struct link_queue *queue, const void *base, size_t size)
{
    for (uint32_t left = queue->count; left > 0; left--) {
        struct link_entry entry = *link_queue_first(queue);
        link_queue_pop(queue);
        uintptr_t at = (uintptr_t)entry.payload, start = (uintptr_t)base;
        if (entry.size == 0 || at < start || at - start >= size) {
            queue->entries[(queue->first + queue->count++) % queue->capacity] = entry;
        }
    }
}

void link_queue_deinit(struct link_queue *queue)
{
    free(queue->entries);
    *queue = (struct link_queue){0};
}
