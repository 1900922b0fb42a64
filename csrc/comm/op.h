/* op.h - what a collective is: its arguments checked, and the header in which a rank tells
 * the others what it is about to do, so that two that differ are told before bytes move.
 *
 * Pure but for the error text. */
#ifndef SOLO_COMM_OP_H
#define SOLO_COMM_OP_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/reduce.h"
#include "solo_group.h"

struct op_header {
    uint64_t sequence; /* of the group; counts collectives */
    uint64_t count;    /* elements of the one part every rank has; 0 where lengths differ */
    double factor;
    uint32_t kind, dtype, reduce, root;
    uint32_t steps; /* that this rank's own bytes need; the most over ranks is done */
    uint32_t unused;
};

#define OP_COUNT_UNKNOWN UINT64_MAX /* in a header for messages */

#define OP_TEXT_MAX 96u

/* Set from any thread; whoever waits for other ranks looks at it. */
struct op_abort {
    _Atomic uint32_t set; /* last: the text is whole by then */
    char text[SOLO_TEXT_MAX];
};
int op_aborted(const struct op_abort *abort); /* 0, or SOLO_EABORTED with the text */

/* SOLO_EINVAL or SOLO_ENOTSUP with a text, before anything is sent. */
int op_check(const struct solo_op *op, uint32_t rank, uint32_t world);

struct op_header op_header_of(const struct solo_op *op, uint64_t sequence);

bool op_reduces(enum solo_op_kind kind);
bool op_has_root(enum solo_op_kind kind);
bool op_only_gives(const struct solo_op *op, uint32_t rank); /* it hears of nobody */
bool op_is_equal(enum solo_op_kind kind);    /* every rank's part has the same length */
uint64_t op_bytes(const struct solo_op *op); /* of the largest part */
struct reduce op_reduce(const struct solo_op *op, uint32_t world);
struct reduce op_reduce_sums(const struct solo_op *op); /* of sums that reduce_start began */

/* One writes where the other reads or writes: they must come one after the other. */
bool op_touches(const struct solo_op *a, const struct solo_op *b);

/* What a rank gives itself: true if there is something to copy. */
bool op_own_copy(const struct solo_op *op, uint32_t rank, struct solo_part *from,
                 struct solo_part *to);

/* "all_reduce #12 of 1000 float32, SUM" */
void op_text(const struct op_header *header, char out[OP_TEXT_MAX]);

/* Whether two ranks do the same thing. Lengths that may differ by rank are not compared. */
bool op_same(const struct op_header *a, const struct op_header *b);

#endif
