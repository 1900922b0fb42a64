#include "comm/schedule.h"

/* ---- what goes from one rank to another, whole ------------------------------------------------ */

static bool is_root(const struct schedule *s)
{
    return op_has_root(s->op->kind) && s->op->root == s->rank;
}

/* Whether a rank gives something to another in one stage of the whole way. */
static bool gives(const struct schedule *s, uint32_t from, uint32_t to)
{
    switch (s->op->kind) {
    case SOLO_OP_BARRIER:
    case SOLO_OP_ALLREDUCE:
    case SOLO_OP_ALLGATHER:
    case SOLO_OP_REDUCE_SCATTER:
    case SOLO_OP_ALLTOALL:
        return from != to;
    case SOLO_OP_REDUCE:
    case SOLO_OP_GATHER:
        return from != to && to == s->op->root;
    case SOLO_OP_BROADCAST:
    case SOLO_OP_SCATTER:
        return from != to && from == s->op->root;
    case SOLO_OP_KIND_COUNT:
        break;
    }
    return false;
}

static bool sends_per_rank(enum solo_op_kind kind)
{
    return kind == SOLO_OP_SCATTER || kind == SOLO_OP_REDUCE_SCATTER || kind == SOLO_OP_ALLTOALL;
}

static bool receives_per_rank(enum solo_op_kind kind)
{
    return kind == SOLO_OP_ALLGATHER || kind == SOLO_OP_GATHER || kind == SOLO_OP_ALLTOALL;
}

static uint64_t part_bytes(const struct schedule *s, const struct solo_part *part)
{
    return part->count * s->element;
}

/* The bytes of a piece of a transfer of so many bytes. */
static uint64_t clip(const struct schedule *s, uint64_t total, uint32_t piece, uint64_t *at)
{
    if (s->pieces == 1) {
        *at = 0;
        return total;
    }
    *at = piece * s->piece_bytes;
    return *at >= total ? 0 : total - *at < s->piece_bytes ? total - *at : s->piece_bytes;
}

/* Of bytes of the input: as many elements of the output. */
static uint64_t in_result(const struct schedule *s, uint64_t bytes)
{
    return bytes / s->element * s->result;
}

static uint32_t whole_sends(const struct schedule *s, uint32_t piece, struct move *out)
{
    uint32_t count = 0;
    for (uint32_t i = 1; i < s->world; i++) {
        uint32_t to = (s->rank + i) % s->world;
        if (!gives(s, s->rank, to)) {
            continue;
        }
        struct move move = {.peer = to};
        bool from_out = s->op->kind == SOLO_OP_BROADCAST;
        move.place = from_out ? PLACE_OUT : PLACE_IN;
        move.part = sends_per_rank(s->op->kind) ? to : 0;
        if (s->op->kind != SOLO_OP_BARRIER) {
            const struct solo_part *parts = from_out ? s->op->out : s->op->in;
            move.bytes = clip(s, part_bytes(s, &parts[move.part]), piece, &move.offset);
        }
        if (move.bytes || piece == 0) { /* an empty part still says: I am here */
            out[count++] = move;
        }
    }
    return count;
}

static uint64_t merged_bytes(const struct schedule *s)
{
    if (s->op->kind == SOLO_OP_REDUCE_SCATTER) {
        return part_bytes(s, &s->op->out[0]);
    }
    return part_bytes(s, &s->op->in[0]);
}

static uint32_t whole_receives(const struct schedule *s, uint32_t piece, struct move *out)
{
    uint32_t count = 0;
    for (uint32_t i = 1; i < s->world; i++) {
        uint32_t from = (s->rank + i) % s->world;
        if (!gives(s, from, s->rank)) {
            continue;
        }
        struct move move = {.peer = from, .place = PLACE_OUT};
        if (op_reduces(s->op->kind)) {
            move.place = PLACE_SCRATCH;
            move.bytes = clip(s, merged_bytes(s), piece, &move.offset);
            move.offset = schedule_room(s, from);
        } else if (s->op->kind != SOLO_OP_BARRIER) {
            move.part = receives_per_rank(s->op->kind) ? from : 0;
            move.bytes = clip(s, part_bytes(s, &s->op->out[move.part]), piece, &move.offset);
        }
        if (move.bytes || piece == 0) {
            out[count++] = move;
        }
    }
    return count;
}

static bool whole_merges(const struct schedule *s, uint32_t piece, struct merge *out)
{
    if (!op_reduces(s->op->kind) || !s->op->out_count) {
        return false;
    }
    uint64_t at, bytes = clip(s, merged_bytes(s), piece, &at);
    *out = (struct merge){.in_part = s->op->kind == SOLO_OP_REDUCE_SCATTER ? s->rank : 0,
                          .in_offset = at,
                          .out_offset = in_result(s, at),
                          .bytes = bytes};
    return bytes > 0;
}

/* ---- by owners ------------------------------------------------------------------------------------ */

/* The only part a rank has of all_reduce, reduce and broadcast. */
static uint64_t tensor_bytes(const struct schedule *s)
{
    return part_bytes(s, s->op->in_count ? &s->op->in[0] : &s->op->out[0]);
}

static bool broadcasts(const struct schedule *s)
{
    return s->op->kind == SOLO_OP_BROADCAST;
}

static uint32_t owners(const struct schedule *s)
{
    return broadcasts(s) ? s->world - 1 : s->world;
}

/* Slice of one owner in one piece: where it begins in the tensor, and its bytes. */
static uint64_t slice(const struct schedule *s, uint32_t piece, uint32_t owner, uint64_t *at)
{
    uint32_t count = owners(s);
    uint64_t whole = s->piece_bytes * count, begin = piece * whole;
    uint64_t left = tensor_bytes(s) - begin;
    uint64_t each = s->piece_bytes;
    if (left < whole) { /* the last piece is shared out evenly, by cache lines */
        each = ((left + count - 1) / count + 63) & ~(uint64_t)63;
        whole = left;
    }
    if (broadcasts(s)) { /* they are counted from the root on, which comes last and has none */
        owner = (owner + s->world - s->op->root - 1) % s->world;
    }
    uint64_t offset = owner * each < whole ? owner * each : whole;
    *at = begin + offset;
    return whole - offset < each ? whole - offset : each;
}

/* Whether a rank takes part in the second stage as one that wants slices. */
static bool wants(const struct schedule *s, uint32_t rank)
{
    if (broadcasts(s)) {
        return rank != s->op->root;
    }
    return s->op->kind == SOLO_OP_ALLREDUCE || rank == s->op->root;
}

static uint32_t add(struct move *out, uint32_t count, uint32_t peer, enum place place,
                    uint64_t offset, uint64_t bytes)
{
    if (bytes) {
        out[count++] = (struct move){
            .peer = peer, .place = place, .part = 0, .offset = offset, .bytes = bytes};
    }
    return count;
}

static uint32_t owners_sends(const struct schedule *s, uint32_t piece, uint32_t stage,
                             struct move *out)
{
    uint32_t count = 0;
    uint64_t at, bytes;
    bool deals = !broadcasts(s) || is_root(s);
    for (uint32_t i = 1; i < s->world; i++) {
        uint32_t peer = (s->rank + i) % s->world;
        if (stage == 0 && deals) {
            bytes = slice(s, piece, peer, &at);
            count = add(out, count, peer, broadcasts(s) ? PLACE_OUT : PLACE_IN, at, bytes);
        } else if (stage == 1 && wants(s, peer)) {
            bytes = in_result(s, slice(s, piece, s->rank, &at));
            count =
                add(out, count, peer, s->op->kind == SOLO_OP_REDUCE ? PLACE_SCRATCH : PLACE_OUT,
                    s->op->kind == SOLO_OP_REDUCE ? schedule_room(s, s->rank) : in_result(s, at),
                    bytes);
        }
    }
    return count;
}

static uint32_t owners_receives(const struct schedule *s, uint32_t piece, uint32_t stage,
                                struct move *out)
{
    uint32_t count = 0;
    uint64_t at = 0, bytes;
    for (uint32_t i = 1; i < s->world; i++) {
        uint32_t peer = (s->rank + i) % s->world;
        if (stage == 0 && broadcasts(s)) {
            bytes = peer == s->op->root ? slice(s, piece, s->rank, &at) : 0;
            count = add(out, count, peer, PLACE_OUT, at, bytes);
        } else if (stage == 0) {
            bytes = slice(s, piece, s->rank, &at);
            count = add(out, count, peer, PLACE_SCRATCH, schedule_room(s, peer), bytes);
        } else if (wants(s, s->rank)) {
            bytes = in_result(s, slice(s, piece, peer, &at));
            count = add(out, count, peer, PLACE_OUT, in_result(s, at), bytes);
        }
    }
    return count;
}

/* A slice reduced for somebody else waits in this rank's own place of the scratch. */
static bool owners_merges(const struct schedule *s, uint32_t piece, uint32_t stage,
                          struct merge *out)
{
    if (stage != 0 || broadcasts(s)) {
        return false;
    }
    uint64_t at, bytes = slice(s, piece, s->rank, &at);
    *out = (struct merge){.in_offset = at,
                          .out_offset = s->op->out_count ? in_result(s, at) : UINT64_MAX,
                          .bytes = bytes};
    return bytes > 0;
}

/* ---- by doubling ------------------------------------------------------------------------------------ */

static uint32_t doubling_stages(uint32_t world)
{
    uint32_t stages = 0;
    while (1u << stages < world) {
        stages++;
    }
    return stages;
}

/* The only transfer of a stage, without bytes. */
static uint32_t doubling_move(const struct schedule *s, uint32_t stage, bool send, struct move *out)
{
    uint32_t step = 1u << stage;
    out[0] = (struct move){.peer = (s->rank + (send ? step : s->world - step)) % s->world};
    return 1;
}

/* ---- choosing --------------------------------------------------------------------------------------- */

static bool has_one_tensor(enum solo_op_kind kind)
{
    return kind == SOLO_OP_ALLREDUCE || kind == SOLO_OP_REDUCE || kind == SOLO_OP_BROADCAST;
}

/* The longest transfer of a reduction, the same on every rank. */
static uint64_t longest(const struct schedule *s)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->op->in_count; i++) {
        uint64_t bytes = part_bytes(s, &s->op->in[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

void schedule_init(struct schedule *s, const struct solo_op *op, uint32_t rank, uint32_t world,
                   bool partial)
{
    size_t element = solo_dtype_bytes(op->dtype);
    enum solo_dtype sum =
        partial ? reduce_sum_dtype((enum reduce_op)op->reduce, op->dtype) : op->dtype;
    *s = (struct schedule){.op = op,
                           .rank = rank,
                           .world = world,
                           .element = solo_dtype_bytes(sum),
                           .result = element,
                           .way = WAY_WHOLE,
                           .stages = 1,
                           .pieces = 1,
                           .piece_bytes = SCHEDULE_PIECE_BYTES};
    if (op->kind == SOLO_OP_BARRIER && world > SCHEDULE_ALL_LINKS) {
        s->way = WAY_DOUBLING;
        s->stages = doubling_stages(world);
    } else if (has_one_tensor(op->kind) && (world > 2 || partial) &&
               tensor_bytes(s) > SCHEDULE_WHOLE_BYTES) {
        uint64_t whole = s->piece_bytes * owners(s);
        s->way = WAY_OWNERS;
        s->stages = 2;
        s->pieces = (uint32_t)((tensor_bytes(s) + whole - 1) / whole);
    } else if (op_reduces(op->kind)) {
        uint64_t most = longest(s);
        s->pieces = most ? (uint32_t)((most + s->piece_bytes - 1) / s->piece_bytes) : 1;
        if (s->pieces == 1) { /* a small one needs no more scratch than itself */
            s->piece_bytes = (most + 63) & ~(uint64_t)63;
        }
        s->keeps_input = op->kind == SOLO_OP_ALLREDUCE && !partial;
    }
    if (op_reduces(op->kind)) {
        bool own = partial || (op->kind == SOLO_OP_REDUCE && s->way == WAY_OWNERS);
        s->scratch_bytes = s->piece_bytes * (own ? world : world - 1);
    }
}

uint32_t schedule_sends(const struct schedule *s, uint32_t piece, uint32_t stage, struct move *out)
{
    switch (s->way) {
    case WAY_WHOLE:
        return whole_sends(s, piece, out);
    case WAY_OWNERS:
        return owners_sends(s, piece, stage, out);
    case WAY_DOUBLING:
        return doubling_move(s, stage, true, out);
    }
    return 0;
}

uint32_t schedule_receives(const struct schedule *s, uint32_t piece, uint32_t stage,
                           struct move *out)
{
    switch (s->way) {
    case WAY_WHOLE:
        return whole_receives(s, piece, out);
    case WAY_OWNERS:
        return owners_receives(s, piece, stage, out);
    case WAY_DOUBLING:
        return doubling_move(s, stage, false, out);
    }
    return 0;
}

bool schedule_merges(const struct schedule *s, uint32_t piece, uint32_t stage, struct merge *out)
{
    switch (s->way) {
    case WAY_WHOLE:
        return whole_merges(s, piece, out);
    case WAY_OWNERS:
        return owners_merges(s, piece, stage, out);
    case WAY_DOUBLING:
        break;
    }
    return false;
}
