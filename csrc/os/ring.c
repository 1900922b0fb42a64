#include "os/ring.h"

#include <string.h>

#include "base/err.h"

/* Pieces are published one by one, so that the other side copies out while we copy in. */
enum { PIECE_BYTES = 64 << 10 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void copy_out(const struct ring_shared *shared, uint64_t from, void *to, size_t size)
{
    size_t at = (size_t)(from % RING_BYTES), first = least(size, RING_BYTES - at);
    memcpy(to, shared->bytes + at, first);
    memcpy((uint8_t *)to + first, shared->bytes, size - first);
}

static void copy_in(struct ring_shared *shared, uint64_t to, const void *from, size_t size)
{
    size_t at = (size_t)(to % RING_BYTES), first = least(size, RING_BYTES - at);
    memcpy(shared->bytes + at, from, first);
    memcpy(shared->bytes, (const uint8_t *)from + first, size - first);
}

static int64_t broken(void)
{
    return err_set(SOLO_EPEER, "the shared memory's counters make no sense");
}

/* Leaving a mark and then looking at the counter, and moving the counter and then looking at the
 * mark, are sequentially consistent: one of the two sides sees the other, so no wake-up is
 * missed. */
/* Bytes that can be read; marks the ring as waited for when there are none. */
static int64_t readable(struct ring *ring)
{
    struct ring_shared *shared = ring->shared;
    uint64_t filled = atomic_load_explicit(&shared->head, memory_order_acquire) - ring->moved;
    if (filled == 0) {
        atomic_store(&shared->reader_waiting, 1);
        filled = atomic_load(&shared->head) - ring->moved;
        if (filled > 0) {
            atomic_store_explicit(&shared->reader_waiting, 0, memory_order_relaxed);
        }
    }
    return filled > RING_BYTES ? broken() : (int64_t)filled;
}

int64_t ring_read(struct ring *ring, void *at, size_t size)
{
    struct ring_shared *shared = ring->shared;
    int64_t filled = readable(ring);
    if (filled <= 0) {
        return filled;
    }
    size_t count = least(least(size, (size_t)filled), PIECE_BYTES);
    copy_out(shared, ring->moved, at, count);
    ring->moved += count;
    atomic_store(&shared->tail, ring->moved);
    /* A waiting writer is woken when half is free, not for every piece. */
    if (atomic_load(&shared->writer_waiting) && (size_t)filled - count <= RING_BYTES / 2) {
        atomic_store_explicit(&shared->writer_waiting, 0, memory_order_relaxed);
        ring->bell = true;
    }
    return (int64_t)count;
}

static int64_t writable(struct ring *ring)
{
    struct ring_shared *shared = ring->shared;
    uint64_t filled = ring->moved - atomic_load_explicit(&shared->tail, memory_order_acquire);
    if (filled == RING_BYTES) {
        atomic_store(&shared->writer_waiting, 1);
        filled = ring->moved - atomic_load(&shared->tail);
        if (filled < RING_BYTES) {
            atomic_store_explicit(&shared->writer_waiting, 0, memory_order_relaxed);
        }
    }
    return filled > RING_BYTES ? broken() : (int64_t)(RING_BYTES - filled);
}

int64_t ring_write(struct ring *ring, const void *bytes, size_t size)
{
    struct ring_shared *shared = ring->shared;
    int64_t room = writable(ring);
    if (room <= 0) {
        return room;
    }
    size_t count = least(least(size, (size_t)room), PIECE_BYTES);
    copy_in(shared, ring->moved, bytes, count);
    ring->moved += count;
    atomic_store(&shared->head, ring->moved);
    if (atomic_load(&shared->reader_waiting)) {
        atomic_store_explicit(&shared->reader_waiting, 0, memory_order_relaxed);
        ring->bell = true;
    }
    return (int64_t)count;
}
