#include "comm/window.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "os/clock.h"

/* ---- waiting ---------------------------------------------------------------------------- */

static int too_late(const struct window_wait *wait, uint64_t now_us)
{
    const struct board *board = wait->board;
    char text[OP_TEXT_MAX], late[192] = "";
    size_t used = 0;
    op_text(&wait->header, text);
    for (uint32_t i = 0; i < board->ranks && used + 96 < sizeof late; i++) {
        const struct board_desk *desk = board_desk(board, i);
        uint64_t sequence = atomic_load(&desk->sequence);
        if (i == wait->rank || sequence < wait->header.sequence) {
            used +=
                (size_t)snprintf(late + used, sizeof late - used, "%srank %u (%s), at #%" PRIu64,
                                 used ? "; " : "", board->global[i], desk->host, sequence);
        }
    }
    return err_set(SOLO_ETIMEDOUT, "%s: Timed out after %.1f s waiting for %s", text,
                   (double)(now_us - wait->begun_us) / 1e6, late);
}

static int check(void *context, uint64_t now_us)
{
    const struct window_wait *wait = context;
    TRY(board_broken(wait->board));
    TRY(op_aborted(wait->abort));
    int rc = board_alive(wait->board, wait->rank);
    if (rc < 0) {
        char text[OP_TEXT_MAX], why[SOLO_TEXT_MAX];
        snprintf(why, sizeof why, "%s", err_text());
        op_text(&wait->header, text);
        return err_set(rc, "%s: %s", text, why);
    }
    return now_us > wait->deadline_us ? too_late(wait, now_us) : 0;
}

static int wait_ready(struct window_wait *wait, uint32_t rank, uint32_t value)
{
    wait->rank = rank;
    struct line_watch watch = {check, wait, wait->board->spin_us};
    return line_wait(&board_desk(wait->board, rank)->ready, value, &watch);
}

static int wait_all_done(struct window_wait *wait, uint32_t value)
{
    struct board *board = wait->board;
    struct line_watch watch = {check, wait, board->spin_us};
    for (uint32_t i = 1; i < board->ranks; i++) {
        wait->rank = (board->rank + i) % board->ranks;
        TRY(line_wait(&board_desk(board, wait->rank)->done, value, &watch));
    }
    return 0;
}

static void say_ready(struct board *board, uint32_t value)
{
    board->ready = value;
    line_set(&board_desk(board, board->rank)->ready, value);
}

static void say_done(struct board *board, uint32_t value)
{
    board->done = value;
    line_set(&board_desk(board, board->rank)->done, value);
}

/* ---- comparing ---------------------------------------------------------------------------- */

static int differ(const struct window_wait *wait, uint32_t rank, const struct op_header *theirs)
{
    char mine_text[OP_TEXT_MAX], their_text[OP_TEXT_MAX];
    op_text(&wait->header, mine_text);
    op_text(theirs, their_text);
    const uint32_t *global = wait->board->global;
    return err_set(SOLO_EMISMATCH, "ranks do different things: rank %u calls %s, rank %u calls %s",
                   global[wait->board->rank], mine_text, global[rank], their_text);
}

static int differ_in_length(const struct window_wait *wait, uint32_t from, uint32_t to,
                            uint64_t sent, uint64_t wanted)
{
    char text[OP_TEXT_MAX];
    op_text(&wait->header, text);
    const uint32_t *global = wait->board->global;
    return err_set(SOLO_EMISMATCH,
                   "%s: rank %u gives %" PRIu64 " elements, rank %u has room for %" PRIu64, text,
                   global[from], sent, global[to], wanted);
}

static const struct op_header *header_of(const struct window_wait *wait, uint32_t rank)
{
    return &board_desk(wait->board, rank)->header[wait->header.sequence & 1];
}

/* ---- one exchange: parts from everyone to everyone ------------------------------------------ */

struct exchange {
    struct window_wait wait;
    size_t element;
    uint32_t first;               /* step of the group at which this one begins */
    size_t room;                  /* bytes of a part that fit in a step */
    bool shared;                  /* one part for all, else send[j] for rank j */
    bool meet;                    /* everyone waits for everyone */
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
    TRY(wait_all_done(&x->wait, number - 1));
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
    struct board_desk *desk = board_desk(board, board->rank);
    uint64_t sequence = x->wait.header.sequence;
    uint64_t most = x->send && x->shared ? x->send[0].count : 0;
    uint64_t *lengths = board_lengths(board, board->rank, sequence);
    for (uint32_t i = 0; !x->shared && i < board->ranks; i++) {
        lengths[i] = x->send ? x->send[i].count : 0;
        most = lengths[i] > most ? lengths[i] : most;
    }
    for (uint32_t i = 0; x->meet && i < board->ranks; i++) {
        lengths[board->ranks + i] = x->take ? x->take[x->reduce ? 0 : i].count : 0;
    }
    x->wait.header.steps = steps_for(x, most);
    desk->header[sequence & 1] = x->wait.header;
    atomic_store(&desk->sequence, sequence);
}

/* Whether this rank needs something of another's windows in the course of the exchange. */
static bool needs(const struct exchange *x, uint32_t rank)
{
    return x->reduce || (x->take && x->take[rank].count);
}

static int compare(struct exchange *x, uint32_t rank, uint32_t *steps)
{
    struct board *board = x->wait.board;
    const struct op_header *theirs = header_of(&x->wait, rank);
    if (!op_same(&x->wait.header, theirs)) {
        return differ(&x->wait, rank, theirs);
    }
    const uint64_t *lengths = board_lengths(board, rank, theirs->sequence);
    uint64_t sent = x->shared ? theirs->count : lengths[board->rank];
    uint64_t wanted = x->take ? x->take[x->reduce ? 0 : rank].count : 0;
    if (x->take && sent != wanted) {
        return differ_in_length(&x->wait, rank, board->rank, sent, wanted);
    }
    sent = x->send ? x->send[x->shared ? 0 : rank].count : 0;
    wanted = lengths[board->ranks + board->rank];
    if (x->meet && x->send && sent != wanted) { /* it will see it too */
        return differ_in_length(&x->wait, board->rank, rank, sent, wanted);
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
        if (x->meet || needs(x, rank)) {
            TRY(wait_ready(&x->wait, rank, x->first + 1));
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
        TRY(wait_ready(&x->wait, rank, x->first + step + 1));
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
    say_ready(board, x->first + 1);
    uint32_t steps;
    TRY(meet(x, &steps));
    for (uint32_t step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            TRY(put(x, step + 1));
            say_ready(board, x->first + step + 2);
        }
        TRY(take(x, step));
        say_done(board, x->first + step + 1);
    }
    return 0;
}

/* ---- all_reduce and reduce in two phases ---------------------------------------------------- */

/* A chunk is cut in one slice per rank. A rank copies in the others' slices, waits, reduces its
 * own slice over all windows, puts the result where its own slice would have been, waits, and
 * copies the others' results out. Ready counts: in0 in1 red0 in2 red1 ... red(last), done by 2
 * a chunk: both grow by twice the chunks, so that windows keep their turn. */
struct two_phase {
    struct window_wait wait;
    const struct reduce *reduce;
    const uint8_t *in;
    uint8_t *out; /* NULL: the result is not wanted here */
    size_t element;
    uint64_t count;
    uint64_t slice; /* elements of a slice of a whole chunk */
    uint32_t first, chunks;
};

static uint32_t ready_in(const struct two_phase *t, uint32_t chunk)
{
    return t->first + (chunk == 0 ? 1 : 2 * chunk);
}

static uint32_t ready_reduced(const struct two_phase *t, uint32_t chunk)
{
    return t->first + 2 * chunk + (chunk + 1 < t->chunks ? 3 : 2);
}

/* Elements of one rank's slice of a chunk, and where they begin in the tensor. */
static uint64_t slice_of(const struct two_phase *t, uint32_t chunk, uint32_t rank, uint64_t *at)
{
    uint32_t ranks = t->wait.board->ranks;
    uint64_t begin = (uint64_t)chunk * ranks * t->slice;
    uint64_t left = t->count - begin, whole = ranks * t->slice;
    uint64_t each = t->slice;
    if (left < whole) { /* the last chunk is shared out evenly, by cache lines */
        uint64_t line = 64 / t->element;
        each = ((left + ranks - 1) / ranks + line - 1) / line * line;
    } else {
        left = whole;
    }
    uint64_t offset = rank * each < left ? rank * each : left;
    *at = begin + offset;
    return left - offset < each ? left - offset : each;
}

static uint8_t *slice_slot(const struct two_phase *t, uint32_t rank, uint32_t chunk, uint32_t owner)
{
    return board_slot(t->wait.board, rank, t->first + chunk) + owner * t->slice * t->element;
}

static void copy_in(const struct two_phase *t, uint32_t chunk)
{
    const struct board *board = t->wait.board;
    for (uint32_t i = 1; i < board->ranks; i++) {
        uint32_t owner = (board->rank + i) % board->ranks;
        uint64_t at, count = slice_of(t, chunk, owner, &at);
        if (count) {
            memcpy(slice_slot(t, board->rank, chunk, owner), t->in + at * t->element,
                   count * t->element);
        }
    }
}

static int reduce_slice(struct two_phase *t, uint32_t chunk)
{
    struct board *board = t->wait.board;
    const void *sources[SOLO_WORLD_MAX];
    uint64_t at, count = slice_of(t, chunk, board->rank, &at);
    for (uint32_t i = 1; i < board->ranks; i++) {
        uint32_t rank = (board->rank + i) % board->ranks;
        TRY(wait_ready(&t->wait, rank, ready_in(t, chunk)));
        sources[rank] = slice_slot(t, rank, chunk, board->rank);
    }
    sources[board->rank] = t->in + at * t->element;
    if (chunk >= 2) { /* our results of the chunk before the last lie here */
        TRY(wait_all_done(&t->wait, t->first + 2 * (chunk - 1)));
    }
    if (!count) {
        return 0;
    }
    uint8_t *result = slice_slot(t, board->rank, chunk, board->rank);
    reduce_n(t->reduce, result, sources, board->ranks, count, REDUCE_CACHED);
    if (t->out) {
        memcpy(t->out + at * t->element, result, count * t->element);
    }
    return 0;
}

static int copy_out(struct two_phase *t, uint32_t chunk)
{
    struct board *board = t->wait.board;
    for (uint32_t i = 1; i < board->ranks; i++) {
        uint32_t owner = (board->rank + i) % board->ranks;
        TRY(wait_ready(&t->wait, owner, ready_reduced(t, chunk)));
        uint64_t at, count = slice_of(t, chunk, owner, &at);
        if (count && t->out) {
            memcpy(t->out + at * t->element, slice_slot(t, owner, chunk, owner),
                   count * t->element);
        }
    }
    return 0;
}

static int compare_all(struct two_phase *t)
{
    struct board *board = t->wait.board;
    for (uint32_t i = 1; i < board->ranks; i++) {
        uint32_t rank = (board->rank + i) % board->ranks;
        TRY(wait_ready(&t->wait, rank, ready_in(t, 0)));
        const struct op_header *theirs = header_of(&t->wait, rank);
        if (!op_same(&t->wait.header, theirs)) {
            return differ(&t->wait, rank, theirs);
        }
    }
    return 0;
}

static int two_phase(struct two_phase *t)
{
    struct board *board = t->wait.board;
    struct board_desk *desk = board_desk(board, board->rank);
    uint64_t line = 64 / t->element;
    t->first = board->done;
    t->slice = board->slot_bytes / board->ranks / t->element / line * line;
    uint64_t chunk_count = t->slice * board->ranks;
    t->chunks = (uint32_t)((t->count + chunk_count - 1) / chunk_count);
    TRY(wait_all_done(&t->wait, t->first - 1));
    copy_in(t, 0);
    desk->header[t->wait.header.sequence & 1] = t->wait.header;
    atomic_store(&desk->sequence, t->wait.header.sequence);
    say_ready(board, ready_in(t, 0));
    TRY(compare_all(t));
    if (t->chunks > 1) {
        TRY(wait_all_done(&t->wait, t->first));
    }
    for (uint32_t chunk = 0; chunk < t->chunks; chunk++) {
        if (chunk + 1 < t->chunks) {
            copy_in(t, chunk + 1);
            say_ready(board, ready_in(t, chunk + 1));
        }
        TRY(reduce_slice(t, chunk));
        say_ready(board, ready_reduced(t, chunk));
        TRY(copy_out(t, chunk));
        say_done(board, t->first + 2 * (chunk + 1));
    }
    return 0;
}

/* ---- which way --------------------------------------------------------------------------------
 */

#define ONE_SHOT_BYTES (64u << 10)

static int run_two_phase(const struct window_wait *wait, const struct solo_op *op,
                         const struct reduce *reduce)
{
    struct two_phase t = {.wait = *wait,
                          .reduce = reduce,
                          .in = op->in[0].bytes,
                          .out = op->out_count ? op->out[0].bytes : NULL,
                          .element = solo_dtype_bytes(op->dtype),
                          .count = op->in[0].count};
    return two_phase(&t);
}

static int run_exchange(const struct window_wait *wait, const struct solo_op *op,
                        const struct reduce *reduce)
{
    struct exchange x = {.wait = *wait, .element = solo_dtype_bytes(op->dtype)};
    bool root = op_has_root(op->kind) && op->root == wait->board->rank;
    struct solo_part from_root[SOLO_WORLD_MAX];
    switch (op->kind) {
    case SOLO_OP_BARRIER:
        x.shared = x.meet = true;
        break;
    case SOLO_OP_ALLREDUCE:
        x.shared = x.meet = true;
        x.send = x.own = op->in, x.take = op->out, x.reduce = reduce;
        break;
    case SOLO_OP_REDUCE:
        x.shared = true;
        x.send = x.own = op->in;
        x.take = root ? op->out : NULL, x.reduce = root ? reduce : NULL;
        break;
    case SOLO_OP_REDUCE_SCATTER:
        x.meet = true;
        x.send = op->in, x.own = &op->in[wait->board->rank], x.take = op->out, x.reduce = reduce;
        break;
    case SOLO_OP_ALLGATHER:
        x.shared = x.meet = true;
        x.send = op->in, x.take = op->out;
        break;
    case SOLO_OP_GATHER:
        x.shared = true;
        x.send = op->in, x.take = root ? op->out : NULL;
        break;
    case SOLO_OP_ALLTOALL:
        x.meet = true;
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
    int rc = board_broken(board);
    if (rc == 0) {
        rc = large ? run_two_phase(&wait, op, &reduce) : run_exchange(&wait, op, &reduce);
    }
    if (rc < 0) {
        char text[SOLO_TEXT_MAX];
        snprintf(text, sizeof text, "%s", err_text());
        board_break(board, rc, text);
    }
    return rc;
}
