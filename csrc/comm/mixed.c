/* Collectives of groups that span hosts: straight over the links, or, where several ranks share a
 * host, inside it by shared memory and between hosts by counterparts: what crosses a link is
 * divided by the ranks of a host, and no rank is a bottleneck. Sums that are rounded (floats of 16
 * and 8 bits) stay unrounded until all of the hosts' are together: one rounding is the promise.
 *
 * Every rank first shows the others of its host what it does: two that differ are told at once,
 * whichever way each would have gone. */
#include <stdlib.h>

#include "base/err.h"
#include "comm/group.h"
#include "comm/op.h"
#include "comm/span.h"
#include "comm/window.h"

struct mixed {
    struct solo_group *group;
    uint64_t sequence, deadline_us;
};

static int on_board(const struct mixed *mixed, const struct solo_op *op)
{
    struct solo_group *group = mixed->group;
    return window_run(&group->board, op, mixed->sequence, mixed->deadline_us, &group->abort);
}

static struct span_call call_of(const struct mixed *mixed, const struct solo_op *op, bool across)
{
    struct solo_group *group = mixed->group;
    return (struct span_call){.op = op,
                              .sequence = mixed->sequence,
                              .deadline_us = mixed->deadline_us,
                              .members = across ? group->across : group->everyone,
                              .count = across ? group->hosts : group->world,
                              .place = across ? group->host : group->rank,
                              .divisor = group->world,
                              .abort = &group->abort,
                              .board = group->board.fault ? &group->board : NULL,
                              .ahead = group->board.fault ? NULL : group_look_ahead,
                              .context = group};
}

static int on_links(const struct mixed *mixed, const struct solo_op *op, bool across)
{
    struct span_call call = call_of(mixed, op, across);
    return span_run(mixed->group->span, &call);
}

/* One tensor as a part for each rank of this host, by cache lines; some may be empty. */
static void cut(const struct solo_part *whole, size_t element, uint32_t count,
                struct solo_part *out)
{
    uint64_t line = 64 / element;
    uint64_t each = ((whole->count + count - 1) / count + line - 1) / line * line;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = i * each < whole->count ? i * each : whole->count;
        uint64_t left = whole->count - at;
        out[i] =
            (struct solo_part){(uint8_t *)whole->bytes + at * element, left < each ? left : each};
    }
}

/* Reduce-scatter on the host, all_reduce of each slice between counterparts, all_gather. The
 * order of a sum is the hosts' partial sums in the order of hosts, each in rank order. */
static int allreduce(const struct mixed *mixed, const struct solo_op *op)
{
    const struct board *board = &mixed->group->board;
    struct solo_part in[SOLO_WORLD_MAX], out[SOLO_WORLD_MAX];
    size_t element = solo_dtype_bytes(op->dtype);
    cut(&op->in[0], element, board->ranks, in);
    cut(&op->out[0], element, board->ranks, out);
    struct solo_part *slice = &out[board->rank];

    struct solo_op step = *op;
    step.kind = SOLO_OP_REDUCE_SCATTER;
    step.reduce = op->reduce == SOLO_REDUCE_AVG ? SOLO_REDUCE_SUM : op->reduce;
    step.in = in, step.in_count = board->ranks;
    step.out = slice, step.out_count = 1;
    TRY(on_board(mixed, &step));

    step.kind = SOLO_OP_ALLREDUCE;
    step.reduce = op->reduce == SOLO_REDUCE_PREMUL ? SOLO_REDUCE_SUM : op->reduce;
    step.in = slice, step.in_count = 1;
    TRY(on_links(mixed, &step, true));

    step.kind = SOLO_OP_ALLGATHER;
    step.out = out, step.out_count = board->ranks;
    return on_board(mixed, &step);
}

/* ---- sums that are rounded ---------------------------------------------------------------------- */

#define PIECE_BYTES (256u << 10) /* that a rank gives another at a time */
#define KEPT_BYTES  (64u << 20)  /* of memory for sums, kept for the next call */

/* The sums of an all_reduce's slice, and behind them what the others of the host give at a time. */
static int make_room(struct solo_group *group, size_t size)
{
    if (size > group->sums_bytes) {
        free(group->sums);
        group->sums_bytes = 0;
        group->sums = malloc(size);
        if (!group->sums) {
            return err_set(SOLO_ENOMEM, "no memory for the sums of an all_reduce: %zu bytes", size);
        }
        group->sums_bytes = size;
    }
    return 0;
}

static struct solo_part clip(const struct solo_part *part, size_t element, uint64_t at,
                             uint64_t most)
{
    at = at < part->count ? at : part->count;
    uint64_t left = part->count - at;
    return (struct solo_part){(uint8_t *)part->bytes + at * element, left < most ? left : most};
}

/* This rank's slice over the ranks of the host, in rank order, not rounded. */
static int sum_slice(const struct mixed *mixed, const struct solo_op *op,
                     const struct solo_part *in, uint8_t *sums, uint8_t *room)
{
    const struct board *board = &mixed->group->board;
    struct solo_part give[SOLO_WORLD_MAX], take[SOLO_WORLD_MAX];
    struct reduce reduce = op_reduce(op, mixed->group->world);
    size_t element = solo_dtype_bytes(op->dtype);
    size_t wide = solo_dtype_bytes(reduce_sum_dtype(reduce.op, op->dtype));
    uint64_t each = PIECE_BYTES / element;
    struct solo_op step = *op;
    step.kind = SOLO_OP_ALLTOALL;
    step.in = give, step.out = take;
    step.in_count = step.out_count = board->ranks;
    for (uint64_t at = 0; at < in[0].count; at += each) { /* no slice is longer than the first */
        for (uint32_t i = 0; i < board->ranks; i++) {
            give[i] = clip(&in[i], element, at, each);
            take[i] = (struct solo_part){room + i * PIECE_BYTES, 0};
        }
        struct solo_part own = give[board->rank];
        for (uint32_t i = 0; i < board->ranks; i++) {
            take[i].count = own.count;
        }
        take[board->rank] = own;
        TRY(on_board(mixed, &step));
        reduce_start(&reduce, sums + at * wide, take[0].bytes, own.count);
        for (uint32_t i = 1; i < board->ranks; i++) {
            reduce_add(&reduce, sums + at * wide, take[i].bytes, own.count);
        }
    }
    return 0;
}

/* As allreduce, but hosts exchange sums that are not rounded: owners of slices of a slice add those
 * up, round, and send the result. */
static int allreduce_sums(const struct mixed *mixed, const struct solo_op *op)
{
    struct solo_group *group = mixed->group;
    const struct board *board = &group->board;
    struct solo_part in[SOLO_WORLD_MAX], out[SOLO_WORLD_MAX];
    size_t element = solo_dtype_bytes(op->dtype);
    cut(&op->in[0], element, board->ranks, in);
    cut(&op->out[0], element, board->ranks, out);
    struct solo_part *slice = &out[board->rank];
    enum solo_dtype wide = reduce_sum_dtype((enum reduce_op)op->reduce, op->dtype);
    size_t sums_bytes = (slice->count * solo_dtype_bytes(wide) + 63) & ~(size_t)63;
    TRY(make_room(group, sums_bytes + board->ranks * PIECE_BYTES));
    TRY(sum_slice(mixed, op, in, group->sums, group->sums + sums_bytes));

    struct solo_part sums = {group->sums, slice->count};
    struct solo_op step = *op;
    step.in = &sums;
    step.out = slice;
    struct span_call call = call_of(mixed, &step, true);
    call.partial = true;
    TRY(span_run(group->span, &call));
    if (group->sums_bytes > KEPT_BYTES) {
        free(group->sums);
        group->sums = NULL;
        group->sums_bytes = 0;
    }

    step.kind = SOLO_OP_ALLGATHER;
    step.in = slice;
    step.out = out, step.out_count = board->ranks;
    return on_board(mixed, &step);
}

/* ---- all others -------------------------------------------------------------------------------------- */

/* From the root to its counterparts, then inside every host. */
static int broadcast(const struct mixed *mixed, const struct solo_op *op)
{
    const struct solo_group *group = mixed->group;
    struct solo_op step = *op;
    if (group->places[group->rank] == group->places[op->root]) {
        step.root = group->hosts_of[op->root];
        TRY(on_links(mixed, &step, true));
    }
    step.root = group->places[op->root];
    return on_board(mixed, &step);
}

/* Nobody leaves before everybody of every host has come. */
static int barrier(const struct mixed *mixed, const struct solo_op *op)
{
    TRY(on_links(mixed, op, true)); /* all of this host have met before */
    return on_board(mixed, op);
}

/* Of an element a host sends, sums first: one that is not rounded and one that is; straight: one of
 * each of its ranks, twice. */
static bool sums_pay(const struct solo_group *group, const struct solo_op *op, enum solo_dtype sum)
{
    size_t straight = 2 * group->board.ranks * solo_dtype_bytes(op->dtype);
    return solo_dtype_bytes(sum) + solo_dtype_bytes(op->dtype) < straight;
}

static int run(const struct mixed *mixed, const struct solo_op *op)
{
    struct solo_group *group = mixed->group;
    if (!group->board.fault) {
        return on_links(mixed, op, false);
    }
    TRY(window_meet(&group->board, op, mixed->sequence, mixed->deadline_us, &group->abort));
    if (group->across && op->kind == SOLO_OP_ALLREDUCE) {
        enum solo_dtype sum = reduce_sum_dtype((enum reduce_op)op->reduce, op->dtype);
        bool picks = op->reduce == SOLO_REDUCE_MIN || op->reduce == SOLO_REDUCE_MAX;
        return picks || sum == op->dtype  ? allreduce(mixed, op)
               : sums_pay(group, op, sum) ? allreduce_sums(mixed, op)
                                          : on_links(mixed, op, false);
    }
    if (group->across && op->kind == SOLO_OP_BROADCAST) {
        return broadcast(mixed, op);
    }
    if (group->across && op->kind == SOLO_OP_BARRIER) {
        return barrier(mixed, op);
    }
    return on_links(mixed, op, false);
}

int mixed_run(struct solo_group *group, const struct solo_op *op, uint64_t sequence,
              uint64_t deadline_us)
{
    const struct mixed mixed = {group, sequence, deadline_us};
    int rc = net_listen(group->net);
    rc = rc < 0 ? rc : run(&mixed, op);
    net_expect_word(group->net, op_only_gives(op, group->rank));
    return rc < 0 ? group_tell(group, rc) : 0; /* what one side noticed, the other must know */
}
