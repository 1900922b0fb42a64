#include "os/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static struct outbox_entry *entry_at(struct outbox *outbox, uint32_t index)
{
    return &outbox->entries[(outbox->first + index) % CONN_SENDS_MAX];
}

int outbox_push(struct outbox *outbox, const struct frame *frame, const void *payload, size_t size,
                uint64_t tag, void *copy)
{
    if (outbox->count == CONN_SENDS_MAX ||
        (copy && outbox->copied_bytes + size > CONN_COPIED_MAX)) {
        return err_set(SOLO_EAGAIN, "%u frames, %zu copied bytes wait for a slow reader",
                       outbox->count, outbox->copied_bytes);
    }
    struct outbox_entry *entry = entry_at(outbox, outbox->count++);
    struct frame head = *frame;
    head.size = (uint32_t)size;
    if (head.payload_crc == 0 && size > 0 && !(head.flags & FRAME_UNCHECKED)) {
        head.payload_crc = frame_crc(payload, size);
    }
    frame_encode(&head, entry->header);
    entry->payload = copy ? copy : payload;
    entry->copy = copy;
    entry->size = size;
    entry->tag = tag;
    outbox->copied_bytes += copy ? size : 0;
    return 0;
}

int outbox_parts(struct outbox *outbox, struct iovec *parts, int max)
{
    int count = 0;
    size_t skip = outbox->done;
    for (uint32_t i = 0; i < outbox->count && count + 2 <= max; i++) {
        struct outbox_entry *entry = entry_at(outbox, i);
        if (skip < FRAME_HEADER_BYTES) {
            parts[count++] = (struct iovec){entry->header + skip, FRAME_HEADER_BYTES - skip};
            skip = 0;
        } else {
            skip -= FRAME_HEADER_BYTES;
        }
        if (skip < entry->size) {
            uint8_t *payload = (uint8_t *)(uintptr_t)entry->payload;
            parts[count++] = (struct iovec){payload + skip, entry->size - skip};
            skip = 0;
        } else {
            skip -= entry->size;
        }
    }
    return count;
}

void outbox_advance(struct outbox *outbox, size_t bytes)
{
    outbox->done += bytes;
}

bool outbox_next_sent(struct outbox *outbox, uint64_t *tag_out, bool *borrowed_out)
{
    struct outbox_entry *entry = entry_at(outbox, 0);
    if (outbox->count == 0 || outbox->done < FRAME_HEADER_BYTES + entry->size) {
        return false;
    }
    outbox->done -= FRAME_HEADER_BYTES + entry->size;
    *tag_out = entry->tag;
    *borrowed_out = !entry->copy;
    outbox->copied_bytes -= entry->copy ? entry->size : 0;
    free(entry->copy);
    entry->copy = NULL;
    outbox->first = (outbox->first + 1) % CONN_SENDS_MAX;
    outbox->count--;
    return true;
}

int outbox_forget(struct outbox *outbox, const void *base, size_t size)
{
    for (uint32_t i = 0; i < outbox->count; i++) {
        struct outbox_entry *entry = entry_at(outbox, i);
        uintptr_t at = (uintptr_t)entry->payload, start = (uintptr_t)base;
        if (entry->copy || entry->size == 0 || at < start || at - start >= size) {
            continue;
        }
        entry->copy = malloc(entry->size);
        if (!entry->copy) {
            return err_set(SOLO_ENOMEM, "no memory to finish a frame of %zu bytes", entry->size);
        }
        memcpy(entry->copy, entry->payload, entry->size);
        entry->payload = entry->copy;
        outbox->copied_bytes += entry->size;
    }
    return 0;
}

void outbox_clear(struct outbox *outbox)
{
    for (uint32_t i = 0; i < outbox->count; i++) {
        free(entry_at(outbox, i)->copy);
    }
    outbox->first = outbox->count = 0;
    outbox->done = outbox->copied_bytes = 0;
}
