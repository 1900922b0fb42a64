/* ring.h - bytes from one process to another through memory both map: one writer, one reader.
 *
 * One thread on each side. Whoever finds the ring full or empty leaves a mark; the other side
 * is then told to ring a bell once there is something to do. */
#ifndef SOLO_OS_RING_H
#define SOLO_OS_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_BYTES                                                                                 \
    (1u                                                                                            \
     << 20) /* a power of two: the two rings of a pair stay in a core's share                   \
                  of the cache */

struct ring_shared {                              /* a line for each writer of a word */
    _Alignas(64) _Atomic uint64_t head;           /* bytes ever written */
    _Alignas(64) _Atomic uint64_t tail;           /* bytes ever read */
    _Alignas(64) _Atomic uint32_t reader_waiting; /* 1: found it empty */
    _Alignas(64) _Atomic uint32_t writer_waiting; /* 1: found it full */
    _Alignas(64) uint8_t bytes[RING_BYTES];
};

struct ring {
    struct ring_shared *shared;
    uint64_t moved; /* our own counter: the shared one is for the other side, who may be broken */
    bool bell;      /* set by reads and writes: the other side waits and is to be woken */
};

/* Bytes moved; 0: empty (full), and the mark is left. SOLO_EPEER: the counters make no sense. */
int64_t ring_read(struct ring *ring, void *at, size_t size);
int64_t ring_write(struct ring *ring, const void *bytes, size_t size);

#endif
