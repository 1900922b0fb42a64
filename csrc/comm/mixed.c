/* Collectives of groups that span hosts: straight over the links, or, where several ranks share a
 * host, inside it by shared memory and between hosts by counterparts: what crosses a link is
 * divided by the ranks of a host, and no rank is a bottleneck.
 *
 * Every rank first shows the others of its host what it does: two that differ are told at once,
 * whichever way each would have gone. */
#include <stdio.h>

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

static int on_links(const struct mixed *mixed, const struct solo_op *op, bool across)
{
    struct solo_group *group = mixed->group;
    struct span_call call = {.op = op,
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
    return span_run(group->span, &call);
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

/* Partial sums that would be rounded on the way are not made: one rounding is the promise. */
static bool is_exact(const struct solo_op *op)
{
    return reduce_sum_dtype((enum reduce_op)op->reduce, op->dtype) == op->dtype;
}

static int run(const struct mixed *mixed, const struct solo_op *op)
{
    struct solo_group *group = mixed->group;
    if (!group->board.fault) {
        return on_links(mixed, op, false);
    }
    TRY(window_meet(&group->board, op, mixed->sequence, mixed->deadline_us, &group->abort));
    if (group->across && op->kind == SOLO_OP_ALLREDUCE && is_exact(op)) {
        return allreduce(mixed, op);
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
    int rc = run(&mixed, op);
    if (rc < 0) { /* what one side noticed, the other must know */
        char text[SOLO_TEXT_MAX];
        snprintf(text, sizeof text, "%s", err_text());
        if (group->board.fault) {
            board_break(&group->board, rc, text);
        }
        net_enter(group->net);
        net_tell_fault(group->net, rc, text);
        net_leave(group->net);
        err_set(rc, "%s", text);
    }
    return rc;
}
