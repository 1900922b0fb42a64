#include "comm/tube.h"

#include <string.h>

/* A frame takes its header and its payload, rounded up so that headers never wrap apart. */
static uint32_t footprint(uint32_t payload)
{
    return (uint32_t)sizeof(struct tube_frame) + ((payload + 31) & ~31u);
}

static void copy_to(struct tube *tube, uint32_t room, uint32_t at, const void *bytes, uint32_t size)
{
    uint32_t offset = at & (room - 1), first = room - offset < size ? room - offset : size;
    memcpy(tube->bytes + offset, bytes, first);
    memcpy(tube->bytes, (const uint8_t *)bytes + first, size - first);
}

static void copy_from(const struct tube *tube, uint32_t room, uint32_t at, void *bytes,
                      uint32_t size)
{
    uint32_t offset = at & (room - 1), first = room - offset < size ? room - offset : size;
    memcpy(bytes, tube->bytes + offset, first);
    memcpy((uint8_t *)bytes + first, tube->bytes, size - first);
}

static uint32_t space(const struct tube *tube, uint32_t room)
{
    uint32_t written = atomic_load_explicit(&tube->written, memory_order_relaxed);
    return room - (written - atomic_load_explicit(&tube->read, memory_order_acquire));
}

uint32_t tube_room(const struct tube *tube, uint32_t room)
{
    uint32_t left = space(tube, room);
    return left <= footprint(0) ? 0 : (left - footprint(0)) & ~31u;
}

bool tube_put(struct tube *tube, uint32_t room, const struct tube_frame *frame, const void *payload)
{
    if (space(tube, room) < footprint(frame->bytes)) {
        return false;
    }
    uint32_t at = atomic_load_explicit(&tube->written, memory_order_relaxed);
    copy_to(tube, room, at, frame, sizeof *frame);
    if (frame->bytes) {
        copy_to(tube, room, at + (uint32_t)sizeof *frame, payload, frame->bytes);
    }
    atomic_store_explicit(&tube->written, at + footprint(frame->bytes), memory_order_release);
    return true;
}

bool tube_peek(const struct tube *tube, uint32_t room, struct tube_frame *out)
{
    uint32_t at = atomic_load_explicit(&tube->read, memory_order_relaxed);
    if (atomic_load_explicit(&tube->written, memory_order_acquire) == at) {
        return false;
    }
    copy_from(tube, room, at, out, sizeof *out);
    return true;
}

void tube_take(struct tube *tube, uint32_t room, const struct tube_frame *frame, void *payload)
{
    uint32_t at = atomic_load_explicit(&tube->read, memory_order_relaxed);
    if (frame->bytes && payload) {
        copy_from(tube, room, at + (uint32_t)sizeof *frame, payload, frame->bytes);
    }
    atomic_store_explicit(&tube->read, at + footprint(frame->bytes), memory_order_release);
}
