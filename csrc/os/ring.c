#include "os/ring.h"

#include <string.h>

#include "base/err.h"

/* Pieces are published one by one, so that the other side copies out while we copy in. */
enum { PIECE_BYTES = 64 << 10 };

_Static_assert(sizeof(struct ring_shared) * 16 <= RING_CONTROL_BYTES, "the counters have room");

int ring_open(const struct shm *shm, unsigned index, struct ring *out)
{
    *out = (struct ring){.shared = (struct ring_shared *)(void *)shm->base + index};
    return shm_map_twice(shm, RING_SEGMENT_BYTES(index), RING_BYTES, &out->bytes);
}

void ring_close(struct ring *ring)
{
    shm_unmap_twice(ring->bytes, RING_BYTES);
    *ring = (struct ring){0};
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static uint8_t *place(const struct ring *ring)
{
    return ring->bytes + ring->moved % RING_BYTES;
}

static int64_t broken(void)
{
    return err_set(SOLO_EPEER, "the shared memory's counters make no sense");
}

/* Leaving a mark and then looking at the counter, and moving the counter and then looking at the
 * mark, are sequentially consistent: one of the two sides sees the other, so no wake-up is
 * missed. */

/* Bytes that can be read; marks the ring as waited for when they are fewer than `wanted`. */
static int64_t readable(struct ring *ring, size_t wanted)
{
    struct ring_shared *shared = ring->shared;
    uint64_t filled = atomic_load_explicit(&shared->head, memory_order_acquire) - ring->moved;
    if (filled < wanted) {
        atomic_store(&shared->reader_wants, ring->moved + wanted);
        filled = atomic_load(&shared->head) - ring->moved;
        if (filled >= wanted) {
            atomic_store_explicit(&shared->reader_wants, 0, memory_order_relaxed);
        }
    }
    return filled > RING_BYTES ? broken() : (int64_t)filled;
}

/* Bytes that can be written; fewer than `wanted`: a mark asks for a bell when `call` are free. */
static int64_t writable(struct ring *ring, size_t wanted, size_t call)
{
    struct ring_shared *shared = ring->shared;
    uint64_t filled = ring->moved - atomic_load_explicit(&shared->tail, memory_order_acquire);
    if (filled <= RING_BYTES && RING_BYTES - filled < wanted) {
        atomic_store(&shared->writer_wants, ring->moved + call - RING_BYTES);
        filled = ring->moved - atomic_load(&shared->tail);
        if (filled <= RING_BYTES - wanted) {
            atomic_store_explicit(&shared->writer_wants, 0, memory_order_relaxed);
        }
    }
    return filled > RING_BYTES ? broken() : (int64_t)(RING_BYTES - filled);
}

void ring_take(struct ring *ring, size_t size)
{
    struct ring_shared *shared = ring->shared;
    ring->moved += size;
    atomic_store(&shared->tail, ring->moved);
    uint64_t wanted = atomic_load(&shared->writer_wants);
    if (wanted && ring->moved >= wanted) {
        atomic_store_explicit(&shared->writer_wants, 0, memory_order_relaxed);
        ring->bell = true;
    }
}

void ring_put(struct ring *ring, size_t size)
{
    struct ring_shared *shared = ring->shared;
    ring->moved += size;
    atomic_store(&shared->head, ring->moved);
    uint64_t wanted = atomic_load(&shared->reader_wants);
    if (wanted && ring->moved >= wanted) {
        atomic_store_explicit(&shared->reader_wants, 0, memory_order_relaxed);
        ring->bell = true;
    }
}

int64_t ring_read(struct ring *ring, void *at, size_t size)
{
    int64_t filled = readable(ring, 1);
    if (filled <= 0) {
        return filled;
    }
    size_t count = least(least(size, (size_t)filled), PIECE_BYTES);
    memcpy(at, place(ring), count);
    ring_take(ring, count);
    return (int64_t)count;
}

int64_t ring_write(struct ring *ring, const void *bytes, size_t size)
{
    /* Woken when half is free, not for every piece. */
    int64_t room = writable(ring, 1, RING_BYTES / 2);
    if (room <= 0) {
        return room;
    }
    size_t count = least(least(size, (size_t)room), PIECE_BYTES);
    memcpy(place(ring), bytes, count);
    ring_put(ring, count);
    return (int64_t)count;
}

int64_t ring_peek(struct ring *ring, size_t size, const uint8_t **out)
{
    MUST(size > 0 && size <= RING_BYTES);
    int64_t filled = readable(ring, size);
    if (filled < 0) {
        return filled;
    }
    *out = place(ring);
    return (size_t)filled < size ? 0 : (int64_t)size;
}

int64_t ring_room(struct ring *ring, size_t size, size_t spare, uint8_t **out)
{
    MUST(size > 0 && size + spare <= RING_BYTES);
    /* Woken when three quarters are free: not for every chunk, which would keep both in step. */
    size_t call = RING_BYTES / 4 * 3 > size + spare ? RING_BYTES / 4 * 3 : size + spare;
    int64_t room = writable(ring, size + spare, call);
    if (room < 0) {
        return room;
    }
    *out = place(ring);
    return (size_t)room < size + spare ? 0 : (int64_t)size;
}
