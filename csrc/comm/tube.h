/* tube.h - frames on their way from one rank to one other of the same host: one writer, one
 * reader, each frame whole or not there.
 *
 * Threads: one writing, one reading. A zeroed tube is empty. */
#ifndef SOLO_COMM_TUBE_H
#define SOLO_COMM_TUBE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tube {
    _Atomic uint32_t written; /* bytes, ever; modulo 2^32 */
    uint32_t unused_a[15];
    _Atomic uint32_t read;
    uint32_t unused_b[15];
    uint8_t bytes[];
};

struct tube_frame {
    uint32_t type;
    uint32_t bytes; /* of payload behind it */
    uint64_t tag, id, size;
};

/* `room` is the size of tube->bytes, a power of two. */
uint32_t tube_room(const struct tube *tube, uint32_t room); /* payload of the largest frame now */
bool tube_put(struct tube *tube, uint32_t room, const struct tube_frame *frame,
              const void *payload); /* false: no room */

/* The next frame without its payload; false: none. */
bool tube_peek(const struct tube *tube, uint32_t room, struct tube_frame *out);
/* Copies the payload of the frame peeked at (NULL: nowhere) and frees its place. */
void tube_take(struct tube *tube, uint32_t room, const struct tube_frame *frame, void *payload);

#endif
