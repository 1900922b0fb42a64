/* all_reduce and reduce in two phases: by slices, each reduced by its owner. */
#include <string.h>

#include "base/err.h"
#include "comm/window_inside.h"

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
        TRY(window_wait_ready(&t->wait, rank, ready_in(t, chunk)));
        sources[rank] = slice_slot(t, rank, chunk, board->rank);
    }
    sources[board->rank] = t->in + at * t->element;
    if (chunk >= 2) { /* our results of the chunk before the last lie here */
        TRY(window_wait_done(&t->wait, t->first + 2 * (chunk - 1)));
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
        TRY(window_wait_ready(&t->wait, owner, ready_reduced(t, chunk)));
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
        TRY(window_wait_ready(&t->wait, rank, ready_in(t, 0)));
        const struct op_header *theirs = window_header(&t->wait, rank);
        if (!op_same(&t->wait.header, theirs)) {
            return window_differ(&t->wait, rank, theirs);
        }
    }
    return 0;
}

static int go(struct two_phase *t)
{
    struct board *board = t->wait.board;
    uint64_t line = 64 / t->element;
    t->first = board->done;
    t->slice = board->slot_bytes / board->ranks / t->element / line * line;
    uint64_t chunk_count = t->slice * board->ranks;
    t->chunks = (uint32_t)((t->count + chunk_count - 1) / chunk_count);
    TRY(window_wait_done(&t->wait, t->first - 1));
    copy_in(t, 0);
    window_introduce(&t->wait);
    window_say_ready(board, ready_in(t, 0));
    TRY(compare_all(t));
    if (t->chunks > 1) {
        TRY(window_wait_done(&t->wait, t->first));
    }
    for (uint32_t chunk = 0; chunk < t->chunks; chunk++) {
        if (chunk + 1 < t->chunks) {
            copy_in(t, chunk + 1);
            window_say_ready(board, ready_in(t, chunk + 1));
        }
        TRY(reduce_slice(t, chunk));
        window_say_ready(board, ready_reduced(t, chunk));
        TRY(copy_out(t, chunk));
        window_say_done(board, t->first + 2 * (chunk + 1));
    }
    return 0;
}

int window_two_phase(const struct window_wait *wait, const struct solo_op *op,
                     const struct reduce *reduce)
{
    struct two_phase t = {.wait = *wait,
                          .reduce = reduce,
                          .in = op->in[0].bytes,
                          .out = op->out_count ? op->out[0].bytes : NULL,
                          .element = solo_dtype_bytes(op->dtype),
                          .count = op->in[0].count};
    return go(&t);
}
