/* read_plan.h - many wanted ranges of a file to few requests: neighbours are read together, large
 * ones are cut so that several threads share them.
 *
 * Pure. The pieces cover every wanted byte exactly once, unless two ranges overlap. */
#ifndef SOLO_CKPT_READ_PLAN_H
#define SOLO_CKPT_READ_PLAN_H

#include "ckpt/grow.h"
#include "solo_ckpt.h"

struct read_plan_piece {
    uint64_t offset, bytes;
    size_t first, count; /* the reads that have bytes in it, by index of the sorted order */
    size_t part;         /* running number of (piece, read) pairs */
};

struct read_plan {
    struct solo_ckpt_read **order; /* by offset; empty ones left out */
    size_t count;
    struct grown pieces; /* struct read_plan_piece */
    size_t parts;
    uint64_t bytes; /* of all reads */
};

/* gap_max: neighbours that are no further apart are read as one. Pieces end on multiples of
 * piece_bytes in the file. Borrows the reads. */
int read_plan_make(struct solo_ckpt_read *reads, size_t count, uint64_t gap_max,
                   uint64_t piece_bytes, struct read_plan *out);
void read_plan_free(struct read_plan *plan);

#endif
