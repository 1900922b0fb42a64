/* ring.h - bytes from one process to another through memory both map: one writer, one reader.
 *
 * Bytes are copied in and out (ring_write, ring_read), or made and used where they lie
 * (ring_room, ring_peek), which saves both copies: the memory of a ring is mapped twice in a row,
 * so that every run of bytes is in one piece.
 *
 * One thread on each side. Whoever finds too little leaves a mark, the position it waits for; the
 * other side is then told to ring a bell once that is reached. */
#ifndef SOLO_OS_RING_H
#define SOLO_OS_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/shm.h"

/* A multiple of every page size; room for what two nodes have under way in a merge. */
#define RING_BYTES (4u << 20)

struct ring_shared {                            /* a line for each writer of a word */
    _Alignas(64) _Atomic uint64_t head;         /* bytes ever written */
    _Alignas(64) _Atomic uint64_t tail;         /* bytes ever read */
    _Alignas(64) _Atomic uint64_t reader_wants; /* the head it waits for; 0: it does not wait */
    _Alignas(64) _Atomic uint64_t writer_wants; /* the tail */
};

#define RING_CONTROL_BYTES        (64u << 10) /* the counters of all rings; the largest page size */
#define RING_SEGMENT_BYTES(count) (RING_CONTROL_BYTES + (size_t)(count)*RING_BYTES)

struct ring {
    struct ring_shared *shared;
    uint8_t *bytes; /* RING_BYTES, mapped twice in a row */
    uint64_t moved; /* our own counter: the shared one is for the other side, who may be broken */
    bool bell;      /* set by whatever moves bytes: the other side waits and is to be woken */
};

/* One side of ring `index` of a segment, whose descriptor must still be there. Gives *out:
 * ring_close. */
int ring_open(const struct shm *shm, unsigned index, struct ring *out);
void ring_close(struct ring *ring); /* zeroed structs are allowed */

/* Bytes moved; 0: empty (full), and the mark is left. SOLO_EPEER: the counters make no sense. */
int64_t ring_read(struct ring *ring, void *at, size_t size);
int64_t ring_write(struct ring *ring, const void *bytes, size_t size);

/* The next `size` bytes, where they lie until ring_take. 0: they are not all there, and the mark
 * is left; else `size`, or SOLO_EPEER. */
int64_t ring_peek(struct ring *ring, size_t size, const uint8_t **out);
void ring_take(struct ring *ring, size_t size);

/* Room for the next `size` bytes, if `spare` are free beside it; nobody sees them before ring_put.
 * 0: there is none, and a mark for much more is left; else `size`, or SOLO_EPEER. */
int64_t ring_room(struct ring *ring, size_t size, size_t spare, uint8_t **out);
void ring_put(struct ring *ring, size_t size);

#endif
