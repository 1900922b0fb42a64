/* ring.h - frames on their way from one rank to one other of the same host: one writer, one
 * reader, each frame whole or not there.
 *
 * Threads: one writing, one reading. A zeroed ring is empty. */
#ifndef SOLO_COMM_RING_H
#define SOLO_COMM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
    _Atomic uint32_t written; /* bytes, ever; modulo 2^32 */
    uint32_t unused_a[15];
    _Atomic uint32_t read;
    uint32_t unused_b[15];
    uint8_t bytes[];
};

struct ring_frame {
    uint32_t type;
    uint32_t bytes; /* of payload behind it */
    uint64_t tag, id, size;
};

/* `room` is the size of ring->bytes, a power of two. */
uint32_t ring_room(const struct ring *ring, uint32_t room); /* payload of the largest frame now */
bool ring_put(struct ring *ring, uint32_t room, const struct ring_frame *frame,
              const void *payload); /* false: no room */

/* The next frame without its payload; false: none. */
bool ring_peek(const struct ring *ring, uint32_t room, struct ring_frame *out);
/* Copies the payload of the frame peeked at (NULL: nowhere) and frees its place. */
void ring_take(struct ring *ring, uint32_t room, const struct ring_frame *frame, void *payload);

#endif
