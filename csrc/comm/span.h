/* span.h - does a collective between hosts: follows a schedule over the links of a net.
 *
 * Receives go straight to where they are needed. A frame that is early (of a later collective,
 * or a piece this rank has not come to) stays with the kernel until it is wanted, so what is
 * held never exceeds SPAN_SCRATCH_BYTES beside the tensors.
 *
 * Threads: one at a time. */
#ifndef SOLO_COMM_SPAN_H
#define SOLO_COMM_SPAN_H

#include "comm/board.h"
#include "comm/net.h"
#include "comm/op.h"

#define SPAN_SCRATCH_BYTES (32u << 20)
/* Pieces under way: of two ranks 16 MiB. With twice as many, 25 MB were in flight at 1 Gbit/s and
 * 100 ms, where 12.5 fill the path, and its queue overflowed: 0.6 of the line instead of 0.98. */
#define SPAN_DEPTH_MAX   64u
#define SPAN_FRAME_BYTES (256u << 10)
#define SPAN_AHEAD_BYTES (8u << 20) /* handed to one link and not yet sent */

struct span_pair; /* working memory, kept between collectives */

int span_new(struct net *net, uint32_t world, struct span_pair **out);
void span_free(struct span_pair *pair); /* before the net; NULL is allowed */

struct span_call {            /* borrowed while it runs */
    const struct solo_op *op; /* its arguments passed op_check */
    uint64_t sequence, deadline_us;
    const uint32_t *members; /* the ranks that take part, ascending in the schedule's order */
    uint32_t count, place;   /* how many, and which of them this one is */
    uint32_t divisor;        /* of averages: usually count */
    bool partial;            /* an all_reduce of sums: see schedule_init */
    const struct op_abort *abort;
    const struct board *board; /* whose fault ends it too; NULL: none */
    /* Gives the next collective behind this one and the `place` - 1 that were given so before, if it
     * is there and may begin: as this one but for its `op`. They must be run next, in that order,
     * unless this one fails. NULL: none may. */
    const struct solo_op *(*ahead)(void *context, const struct solo_op *now, uint32_t place);
    void *context;
};

/* Does a collective. After an error the net's collective links are of no use any more, and the
 * other ranks have been told. */
int span_run(struct span_pair *pair, const struct span_call *call);

/* What was begun ahead is not run after all, for this thread's error, which it returns. */
int span_forget(struct span_pair *pair, int rc);

uint64_t span_bytes(const struct span_pair *pair);

#endif
