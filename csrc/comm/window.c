#include "comm/window.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "comm/window_inside.h"
#include "os/clock.h"

/* ---- one exchange: parts from everyone to everyone ------------------------------------------ */

struct exchange {
    struct window_wait wait;
    size_t element;
    uint32_t first; /* step of the group at which this one begins */
    size_t room;    /* bytes of a part that fit in a step */
    bool shared;    /* one part for all, else send[j] for rank j */
    bool rooted;    /* the root and each other wait for each other, else all for all */
    uint32_t root;
    const struct solo_part *send; /* NULL: nothing */
    const struct solo_part *take; /* take[i] comes from rank i; NULL: nothing */
    const struct reduce *reduce;  /* take[0] is the reduction of all; NULL: copy */
    const struct solo_part *own;  /* with reduce: this rank's source */
};

static uint32_t steps_for(const struct exchange *x, uint64_t count)
{
    uint64_t bytes = count * x->element;
    return bytes ? (uint32_t)((bytes + x->room - 1) / x->room) : 1;
}

/* The bytes of a part that step number `step` moves, and where they begin. */
static size_t piece(const struct exchange *x, uint64_t count, uint32_t step, size_t *at_out)
{
    uint64_t bytes = count * x->element, at = (uint64_t)step * x->room;
    *at_out = (size_t)at;
    return at >= bytes ? 0 : bytes - at < x->room ? (size_t)(bytes - at) : x->room;
}

static int put(struct exchange *x, uint32_t step)
{
    struct board *board = x->wait.board;
    uint32_t number = x->first + step;
    TRY(window_wait_done(&x->wait, number - 1));
    uint8_t *slot = board_slot(board, board->rank, number);
    size_t at;
    if (x->send && x->shared) {
        size_t size = piece(x, x->send[0].count, step, &at);
        if (size) {
            memcpy(slot, (const uint8_t *)x->send[0].bytes + at, size);
        }
    }
    for (uint32_t i = 1; x->send && !x->shared && i < board->ranks; i++) {
        uint32_t to = (board->rank + i) % board->ranks;
        size_t size = piece(x, x->send[to].count, step, &at);
        if (size) {
            memcpy(slot + to * x->room, (const uint8_t *)x->send[to].bytes + at, size);
        }
    }
    return 0;
}

static void introduce(struct exchange *x)
{
    struct board *board = x->wait.board;
    uint64_t most = x->send && x->shared ? x->send[0].count : 0;
    uint64_t *lengths = board_lengths(board, board->rank);
    for (uint32_t i = 0; !x->shared && i < board->ranks; i++) {
        lengths[i] = x->send ? x->send[i].count : 0;
        most = lengths[i] > most ? lengths[i] : most;
    }
    for (uint32_t i = 0; i < board->ranks; i++) {
        lengths[board->ranks + i] = x->take ? x->take[x->reduce ? 0 : i].count : 0;
    }
    x->wait.header.steps = steps_for(x, most);
    window_introduce(&x->wait);
}

/* Whether this rank needs something of another's windows in the course of the exchange. */
static bool needs(const struct exchange *x, uint32_t rank)
{
    return x->reduce || (x->take && x->take[rank].count);
}

/* Whether this rank sees what another does before it goes on. */
static bool meets(const struct exchange *x, uint32_t rank)
{
    return !x->rooted || rank == x->root || x->wait.board->rank == x->root;
}

static int compare(struct exchange *x, uint32_t rank, uint32_t *steps)
{
    struct board *board = x->wait.board;
    const struct op_header *theirs = window_header(&x->wait, rank);
    if (!op_same(&x->wait.header, theirs)) {
        return window_differ(&x->wait, rank, theirs);
    }
    const uint64_t *lengths = board_lengths(board, rank);
    uint64_t sent = x->shared ? theirs->count : lengths[board->rank];
    uint64_t wanted = x->take ? x->take[x->reduce ? 0 : rank].count : 0;
    if (x->take && sent != wanted) {
        return window_differ_in_length(&x->wait, rank, board->rank, sent, wanted);
    }
    sent = x->send ? x->send[x->shared ? 0 : rank].count : 0;
    wanted = lengths[board->ranks + board->rank];
    bool keeps = x->rooted && x->take;         /* a root that gathers gives nothing */
    if (x->send && !keeps && sent != wanted) { /* it will see it too */
        return window_differ_in_length(&x->wait, board->rank, rank, sent, wanted);
    }
    *steps = theirs->steps > *steps ? theirs->steps : *steps;
    return 0;
}

/* Waits for the first step of those who matter to this rank and compares what they do. */
static int meet(struct exchange *x, uint32_t *steps)
{
    struct board *board = x->wait.board;
    *steps = x->wait.header.steps;
    for (uint32_t i = 1; i < board->ranks; i++) {
        uint32_t rank = (board->rank + i) % board->ranks;
        if (meets(x, rank)) {
            TRY(window_wait_ready(&x->wait, rank, x->first + 1));
            TRY(compare(x, rank, steps));
        }
    }
    return 0;
}

static int take_reduced(struct exchange *x, uint32_t step)
{
    struct board *board = x->wait.board;
    size_t at;
    size_t size = piece(x, x->take[0].count, step, &at);
    const void *sources[SOLO_WORLD_MAX];
    for (uint32_t i = 0; i < board->ranks; i++) {
        const uint8_t *slot = board_slot(board, i, x->first + step);
        sources[i] = i == board->rank ? (const uint8_t *)x->own->bytes + at
                                      : slot + (x->shared ? 0 : board->rank * x->room);
    }
    if (size) {
        reduce_n(x->reduce, (uint8_t *)x->take[0].bytes + at, sources, board->ranks,
                 size / x->element, REDUCE_CACHED);
    }
    return 0;
}

static int take(struct exchange *x, uint32_t step)
{
    struct board *board = x->wait.board;
    for (uint32_t i = 1; i < board->ranks; i++) {
        uint32_t rank = (board->rank + i) % board->ranks;
        if (!needs(x, rank)) {
            continue;
        }
        TRY(window_wait_ready(&x->wait, rank, x->first + step + 1));
        if (x->reduce) {
            continue;
        }
        size_t at;
        size_t size = piece(x, x->take[rank].count, step, &at);
        const uint8_t *slot = board_slot(board, rank, x->first + step);
        if (size) {
            memcpy((uint8_t *)x->take[rank].bytes + at,
                   slot + (x->shared ? 0 : board->rank * x->room), size);
        }
    }
    return x->reduce ? take_reduced(x, step) : 0;
}

static int exchange(struct exchange *x)
{
    struct board *board = x->wait.board;
    x->first = board->done;
    x->room = x->shared ? board->slot_bytes : (board->slot_bytes / board->ranks) & ~(size_t)63;
    TRY(put(x, 0));
    introduce(x);
    window_say_ready(board, x->first + 1);
    uint32_t steps;
    TRY(meet(x, &steps));
    for (uint32_t step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            TRY(put(x, step + 1));
            window_say_ready(board, x->first + step + 2);
        }
        TRY(take(x, step));
        window_say_done(board, x->first + step + 1);
    }
    return 0;
}

/* ---- which way --------------------------------------------------------------------------------
 */

#define ONE_SHOT_BYTES (64u << 10)

static int run_exchange(const struct window_wait *wait, const struct solo_op *op,
                        const struct reduce *reduce)
{
    struct exchange x = {.wait = *wait,
                         .element = solo_dtype_bytes(op->dtype),
                         .rooted = op_has_root(op->kind),
                         .root = op->root};
    bool root = op_has_root(op->kind) && op->root == wait->board->rank;
    struct solo_part from_root[SOLO_WORLD_MAX];
    switch (op->kind) {
    case SOLO_OP_BARRIER:
        x.shared = true;
        break;
    case SOLO_OP_ALLREDUCE:
        x.shared = true;
        x.send = x.own = op->in, x.take = op->out, x.reduce = reduce;
        break;
    case SOLO_OP_REDUCE:
        x.shared = true;
        x.send = x.own = op->in;
        x.take = root ? op->out : NULL, x.reduce = root ? reduce : NULL;
        break;
    case SOLO_OP_REDUCE_SCATTER:
        x.send = op->in, x.own = &op->in[wait->board->rank], x.take = op->out, x.reduce = reduce;
        break;
    case SOLO_OP_ALLGATHER:
        x.shared = true;
        x.send = op->in, x.take = op->out;
        break;
    case SOLO_OP_GATHER:
        x.shared = true;
        x.send = op->in, x.take = root ? op->out : NULL;
        break;
    case SOLO_OP_ALLTOALL:
        x.send = op->in, x.take = op->out;
        break;
    case SOLO_OP_BROADCAST:
    case SOLO_OP_SCATTER:
        x.shared = op->kind == SOLO_OP_BROADCAST;
        if (root) {
            x.send = x.shared ? op->out : op->in;
        } else {
            memset(from_root, 0, sizeof from_root);
            from_root[op->root] = op->out[0];
            x.take = from_root;
        }
        break;
    case SOLO_OP_KIND_COUNT:
        return SOLO_EINVAL;
    }
    return exchange(&x);
}

/* An error breaks the board, so that nobody waits in vain. */
static int conclude(struct board *board, int rc)
{
    if (rc < 0) {
        char text[SOLO_TEXT_MAX];
        snprintf(text, sizeof text, "%s", err_text());
        board_break(board, rc, text);
    }
    return rc;
}

int window_meet(struct board *board, const struct solo_op *op, uint64_t sequence,
                uint64_t deadline_us, const struct op_abort *abort)
{
    struct exchange x = {.wait = {.board = board,
                                  .header = op_header_of(op, sequence),
                                  .begun_us = clock_us(),
                                  .deadline_us = deadline_us,
                                  .abort = abort},
                         .element = 1,
                         .shared = true};
    board->turns++;
    int rc = board_broken(board);
    return conclude(board, rc < 0 ? rc : exchange(&x));
}

int window_run(struct board *board, const struct solo_op *op, uint64_t sequence,
               uint64_t deadline_us, const struct op_abort *abort)
{
    struct window_wait wait = {.board = board,
                               .header = op_header_of(op, sequence),
                               .begun_us = clock_us(),
                               .deadline_us = deadline_us,
                               .abort = abort};
    struct reduce reduce = op_reduce(op, board->ranks);
    struct solo_part from, to;
    if (op_own_copy(op, board->rank, &from, &to)) {
        memmove(to.bytes, from.bytes, from.count * solo_dtype_bytes(op->dtype));
    }
    /* For two ranks both ways move as much, and one shot waits half as often. */
    bool large = (op->kind == SOLO_OP_ALLREDUCE || op->kind == SOLO_OP_REDUCE) &&
                 op_bytes(op) > ONE_SHOT_BYTES && board->ranks > 2;
    board->turns++;
    int rc = board_broken(board);
    if (rc == 0) {
        rc = large ? window_two_phase(&wait, op, &reduce) : run_exchange(&wait, op, &reduce);
    }
    return conclude(board, rc);
}
