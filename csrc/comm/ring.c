#include "comm/ring.h"

#include <string.h>

/* A frame takes its header and its payload, rounded up so that headers never wrap apart. */
static uint32_t footprint(uint32_t payload)
{
    return (uint32_t)sizeof(struct ring_frame) + ((payload + 31) & ~31u);
}

static void copy_to(struct ring *ring, uint32_t room, uint32_t at, const void *bytes, uint32_t size)
{
    uint32_t offset = at & (room - 1), first = room - offset < size ? room - offset : size;
    memcpy(ring->bytes + offset, bytes, first);
    memcpy(ring->bytes, (const uint8_t *)bytes + first, size - first);
}

static void copy_from(const struct ring *ring, uint32_t room, uint32_t at, void *bytes,
                      uint32_t size)
{
    uint32_t offset = at & (room - 1), first = room - offset < size ? room - offset : size;
    memcpy(bytes, ring->bytes + offset, first);
    memcpy((uint8_t *)bytes + first, ring->bytes, size - first);
}

static uint32_t space(const struct ring *ring, uint32_t room)
{
    uint32_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    return room - (written - atomic_load_explicit(&ring->read, memory_order_acquire));
}

uint32_t ring_room(const struct ring *ring, uint32_t room)
{
    uint32_t left = space(ring, room);
    return left <= footprint(0) ? 0 : (left - footprint(0)) & ~31u;
}

bool ring_put(struct ring *ring, uint32_t room, const struct ring_frame *frame, const void *payload)
{
    if (space(ring, room) < footprint(frame->bytes)) {
        return false;
    }
    uint32_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
    copy_to(ring, room, at, frame, sizeof *frame);
    if (frame->bytes) {
        copy_to(ring, room, at + (uint32_t)sizeof *frame, payload, frame->bytes);
    }
    atomic_store_explicit(&ring->written, at + footprint(frame->bytes), memory_order_release);
    return true;
}

bool ring_peek(const struct ring *ring, uint32_t room, struct ring_frame *out)
{
    uint32_t at = atomic_load_explicit(&ring->read, memory_order_relaxed);
    if (atomic_load_explicit(&ring->written, memory_order_acquire) == at) {
        return false;
    }
    copy_from(ring, room, at, out, sizeof *out);
    return true;
}

void ring_take(struct ring *ring, uint32_t room, const struct ring_frame *frame, void *payload)
{
    uint32_t at = atomic_load_explicit(&ring->read, memory_order_relaxed);
    if (frame->bytes && payload) {
        copy_from(ring, room, at + (uint32_t)sizeof *frame, payload, frame->bytes);
    }
    atomic_store_explicit(&ring->read, at + footprint(frame->bytes), memory_order_release);
}
