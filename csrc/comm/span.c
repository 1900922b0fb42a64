#include "comm/span.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "comm/span_inside.h"
#include "os/clock.h"

static struct bead *bead_of(const struct span *x, uint32_t piece)
{
    return &x->beads[piece % x->depth];
}

static uint8_t *scratch_of(const struct span *x, uint32_t piece)
{
    return x->scratch + (piece % x->depth) * x->schedule.scratch_bytes;
}

static uint8_t *address(const struct span *x, uint32_t piece, const struct move *move)
{
    switch (move->place) {
    case PLACE_IN:
        return x->op->in ? (uint8_t *)x->op->in[move->part].bytes + move->offset : NULL;
    case PLACE_OUT:
        return x->op->out ? (uint8_t *)x->op->out[move->part].bytes + move->offset : NULL;
    case PLACE_SCRATCH:
        return scratch_of(x, piece) + move->offset;
    }
    return NULL;
}

/* ---- pieces move on --------------------------------------------------------------------------------- */

static void enqueue(struct span *x, uint32_t piece, uint32_t stage)
{
    uint32_t count = schedule_sends(&x->schedule, piece, stage, x->moves);
    for (uint32_t i = 0; i < count; i++) {
        const struct move *move = &x->moves[i];
        struct outgoing *out = &x->outgoing[move->peer];
        *parcel_of(x, move->peer, out->first + out->count++) = (struct parcel){
            .at = address(x, piece, move), .bytes = move->bytes, .piece = piece, .stage = stage};
        bead_of(x, piece)->unsent++;
        x->parcels_left++;
    }
}

static void begin_piece(struct span *x)
{
    uint32_t piece = x->begun++;
    struct bead *bead = bead_of(x, piece);
    *bead = (struct bead){0};
    memset(slot_of(x, piece, 0, 0), 0, x->schedule.stages * x->world * sizeof(struct slot));
    for (uint32_t stage = 0; stage < x->schedule.stages; stage++) {
        bead->awaited[stage] = schedule_receives(&x->schedule, piece, stage, x->moves);
        for (uint32_t i = 0; i < bead->awaited[stage]; i++) {
            *slot_of(x, piece, stage, x->moves[i].peer) = (struct slot){
                .at = address(x, piece, &x->moves[i]), .bytes = x->moves[i].bytes, .awaited = true};
        }
    }
    enqueue(x, piece, 0);
}

static void merge(struct span *x, uint32_t piece, uint32_t stage)
{
    struct merge merge;
    if (!schedule_merges(&x->schedule, piece, stage, &merge)) {
        return;
    }
    struct reduce reduce = op_reduce(x->op, x->divisor);
    uint8_t *scratch = scratch_of(x, piece), *own = scratch + schedule_room(&x->schedule, x->rank);
    uint64_t count = merge.bytes / x->schedule.element;
    for (uint32_t i = 0; i < x->world; i++) {
        x->sources[i] = scratch + schedule_room(&x->schedule, i);
    }
    x->sources[x->rank] = (uint8_t *)x->op->in[merge.in_part].bytes + merge.in_offset;
    uint8_t *out =
        merge.out_offset == UINT64_MAX ? own : (uint8_t *)x->op->out[0].bytes + merge.out_offset;
    if (!x->partial) {
        reduce_n(&reduce, out, x->sources, x->world, count, REDUCE_CACHED);
        return;
    }
    struct reduce sums = op_reduce_sums(x->op);
    reduce_n(&sums, own, x->sources, x->world, count, REDUCE_CACHED);
    reduce_finish(&reduce, out, own, count);
}

/* Takes a piece as far as it can go. */
static void advance(struct span *x, uint32_t piece)
{
    struct bead *bead = bead_of(x, piece);
    while (bead->stage < x->schedule.stages && bead->awaited[bead->stage] == 0) {
        if (x->schedule.keeps_input && bead->unsent) {
            return;
        }
        merge(x, piece, bead->stage);
        bead->stage++;
        if (bead->stage < x->schedule.stages) {
            enqueue(x, piece, bead->stage);
        }
    }
}

static bool piece_done(const struct span *x, uint32_t piece)
{
    const struct bead *bead = bead_of(x, piece);
    return bead->stage == x->schedule.stages && bead->unsent == 0;
}

/* Lets new pieces in behind those that are done. */
static void roll(struct span *x)
{
    uint32_t had = x->begun;
    while (x->base < x->begun && piece_done(x, x->base)) {
        x->base++;
    }
    while (x->begun < x->schedule.pieces && x->begun - x->base < x->depth) {
        begin_piece(x);
        advance(x, x->begun - 1);
    }
    if (x->begun != had) {
        net_resume(x->net, NET_COLLECTIVE);
    }
}

int span_take(struct span *x, uint32_t from, const struct frame *frame)
{
    uint32_t place;
    if (!x->op) {
        return 0; /* given up */
    }
    if (!place_of(x, from, &place)) {
        return err_set(SOLO_EPEER, "rank %u sent a part that is not its to send", from);
    }
    struct slot *slot = slot_of(x, frame->chunk, frame->attempt & 255, place);
    slot->got += frame->flags & NET_EMPTY ? 0 : frame->size;
    if (slot->got == slot->bytes && slot->awaited) {
        slot->awaited = false;
        bead_of(x, frame->chunk)->awaited[frame->attempt & 255]--;
        advance(x, frame->chunk);
    }
    return 0;
}

void span_sent(struct span *x, uint32_t to, uint64_t tag)
{
    uint32_t piece = (uint32_t)tag & SPAN_TAG_PIECE, place;
    if (place_of(x, to, &place)) {
        x->outgoing[place].ahead -= tag >> 32;
    }
    x->frames_left--;
    bead_of(x, piece)->unsent--;
    advance(x, piece);
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static int send_frame(struct span *x, uint32_t to, struct parcel *parcel)
{
    static const uint8_t nothing = 0;
    uint64_t left = parcel->bytes - parcel->sent;
    size_t size = left < SPAN_FRAME_BYTES ? (size_t)left : SPAN_FRAME_BYTES;
    struct frame frame =
        span_frame(x, to, parcel->piece, parcel->stage, parcel->bytes, parcel->sent);
    const void *payload = parcel->bytes ? parcel->at + parcel->sent : &nothing;
    size_t wire = parcel->bytes ? size : 1;
    uint64_t tag = (uint64_t)wire << 32 | (uint64_t)x->number << SPAN_TAG_PLACE | parcel->piece;
    TRY(net_send(x->net, x->members[to], NET_COLLECTIVE, &frame, payload, wire, tag));
    parcel->sent += size;
    x->outgoing[to].ahead += wire;
    x->frames_left++;
    bead_of(x, parcel->piece)->unsent++;
    return 0;
}

static int pump_to(struct span *x, uint32_t to)
{
    struct outgoing *out = &x->outgoing[to];
    while (out->count && out->ahead < SPAN_AHEAD_BYTES) {
        struct parcel *parcel = parcel_of(x, to, out->first);
        int rc = send_frame(x, to, parcel);
        if (rc < 0) {
            return rc == SOLO_EAGAIN ? 0 : rc;
        }
        if (parcel->sent == parcel->bytes) {
            bead_of(x, parcel->piece)->unsent--; /* the parcel itself; its frames still count */
            x->parcels_left--;
            out->first++;
            out->count--;
        }
    }
    return 0;
}

/* ---- waiting -------------------------------------------------------------------------------------------- */

static bool owes(const struct span *x, uint32_t rank)
{
    for (uint32_t piece = x->base; piece < x->begun; piece++) {
        for (uint32_t stage = 0; stage < x->schedule.stages; stage++) {
            if (slot_of(x, piece, stage, rank)->awaited) {
                return true;
            }
        }
    }
    return false;
}

/* Links that are needed: made, and seen to be alive. */
static int tend(struct span *x)
{
    for (uint32_t i = 1; i < x->world; i++) {
        uint32_t rank = (x->rank + i) % x->world;
        bool busy = x->outgoing[rank].count || x->outgoing[rank].ahead;
        if (busy || owes(x, rank)) {
            TRY(net_reach(x->net, x->members[rank], NET_COLLECTIVE));
            TRY(pump_to(x, rank));
        }
    }
    return 0;
}

static int too_late(const struct span *x, uint64_t begun_us, uint64_t now_us)
{
    char op[OP_TEXT_MAX], late[192] = "";
    size_t used = 0;
    op_text(&x->header, op);
    for (uint32_t i = 0; i < x->world && used + 80 < sizeof late; i++) {
        if (i != x->rank && (owes(x, i) || x->outgoing[i].count || x->outgoing[i].ahead)) {
            used +=
                (size_t)snprintf(late + used, sizeof late - used, "%srank %u (%s)",
                                 used ? ", " : "", x->members[i], net_host(x->net, x->members[i]));
        }
    }
    return err_set(SOLO_ETIMEDOUT, "%s: Timed out after %.1f s waiting for %s", op,
                   (double)(now_us - begun_us) / 1e6, late);
}

#define LOOK_US     10000u      /* how often the abort flag and the deadline are looked at */
#define BRISK_US    200u        /* so long a small call looks again and again before it sleeps */
#define BRISK_BYTES (64u << 10) /* a larger one takes longer than that anyway */

/* One turn of waiting. */
static int wait_a_turn(const struct span *x, bool small, uint64_t begun_us, uint64_t now_us)
{
    if (small && now_us - begun_us < BRISK_US && net_may_poll(x->net, now_us)) {
        return net_poll(x->net);
    }
    return net_turn(x->net, now_us + LOOK_US);
}

/* What is left of it: nothing but to wait for others, and for what was handed to the links. */
static bool only_waits(const struct span *x)
{
    if (x->begun < x->schedule.pieces || x->parcels_left) {
        return false;
    }
    for (uint32_t piece = x->base; piece < x->begun; piece++) {
        if (bead_of(x, piece)->stage + 1 < x->schedule.stages) {
            return false;
        }
    }
    return true;
}

/* The next collectives begin while this one's last bytes are on their way: else every call would
 * leave the line empty for as long as a byte takes, and short ones for most of it. What goes wrong
 * with them is told at their turn. */
static int go_ahead(struct span_pair *pair, const struct span *x, const struct span_call *call)
{
    struct span_call ahead = *call;
    for (uint32_t i = 1; i < SPAN_RING && call->ahead; i++) {
        struct span *next = span_at(pair, ++ahead.sequence);
        if (!next->op) {
            ahead.op = only_waits(x) ? call->ahead(call->context, call->op, i) : NULL;
            if (!ahead.op) {
                return 0;
            }
            TRY(span_begin(next, &ahead));
            net_resume(x->net, NET_COLLECTIVE);
        }
        roll(next);
        (void)tend(next);
        x = next;
    }
    return 0;
}

int span_go_on(struct span_pair *pair, struct span *x, const struct span_call *call)
{
    uint64_t begun_us = clock_us();
    bool small = op_bytes(call->op) <= BRISK_BYTES;
    roll(x);
    while (x->base < x->schedule.pieces || x->parcels_left || x->frames_left || x->doubt) {
        TRY(tend(x));
        TRY(go_ahead(pair, x, call));
        uint64_t now_us = clock_us();
        if (now_us > call->deadline_us) {
            return too_late(x, begun_us, now_us);
        }
        TRY(wait_a_turn(x, small, begun_us, now_us));
        roll(x);
        if (x->rc) {
            return err_set(x->rc, "%s", x->text);
        }
        TRY(net_told_fault(x->net));
        TRY(op_aborted(call->abort));
        TRY(call->board ? board_broken(call->board) : 0);
    }
    return 0;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static int grow(void **at, size_t size)
{
    MUST(size > 0);
    void *larger = realloc(*at, size);
    if (!larger) {
        return err_set(SOLO_ENOMEM, "no memory for a collective: %zu bytes", size);
    }
    *at = larger;
    return 0;
}

static int make_room(struct span *x)
{
    const struct schedule *s = &x->schedule;
    uint64_t each = s->scratch_bytes ? s->scratch_bytes : s->piece_bytes * x->world;
    uint64_t depth = SPAN_SCRATCH_BYTES / (each ? each : 1);
    depth = depth < 2 ? 2 : depth > SPAN_DEPTH_MAX ? SPAN_DEPTH_MAX : depth;
    x->depth = s->pieces < depth ? s->pieces : (uint32_t)depth;
    if (x->depth > x->beads_held) {
        TRY(grow((void **)&x->beads, x->depth * sizeof *x->beads));
        x->beads_held = x->depth;
    }
    uint32_t rows = x->depth * s->stages;
    if (rows > x->rows_held) {
        TRY(grow((void **)&x->slots, (size_t)rows * x->most * sizeof *x->slots));
        TRY(grow((void **)&x->parcels, (size_t)rows * x->most * sizeof *x->parcels));
        x->rows_held = rows;
    }
    if (x->depth * s->scratch_bytes > x->scratch_held) {
        TRY(grow((void **)&x->scratch, x->depth * s->scratch_bytes));
        x->scratch_held = x->depth * s->scratch_bytes;
    }
    return 0;
}

int span_init(struct span *x, struct net *net, uint32_t world)
{
    x->outgoing = calloc(world, sizeof *x->outgoing);
    x->moves = calloc(world, sizeof *x->moves);
    x->sources = calloc(world, sizeof *x->sources);
    x->net = net;
    x->most = world;
    return x->outgoing && x->moves && x->sources
               ? 0
               : err_set(SOLO_ENOMEM, "no memory for %u ranks", world);
}

void span_deinit(struct span *x)
{
    free(x->beads);
    free(x->slots);
    free(x->parcels);
    free(x->outgoing);
    free(x->moves);
    free(x->sources);
    free(x->scratch);
}

int span_begin(struct span *x, const struct span_call *call)
{
    const struct solo_op *op = call->op;
    x->members = call->members;
    x->rank = call->place;
    x->world = call->count;
    x->divisor = call->divisor;
    x->partial = call->partial;
    x->header = op_header_of(op, call->sequence);
    x->number = call->sequence % SPAN_RING;
    x->base = x->begun = x->parcels_left = x->frames_left = 0;
    x->doubt = false;
    x->rc = 0;
    memset(x->outgoing, 0, x->world * sizeof *x->outgoing);
    schedule_init(&x->schedule, op, x->rank, x->world, x->partial);
    struct solo_part from, to;
    if (op_own_copy(op, x->rank, &from, &to)) {
        memmove(to.bytes, from.bytes, from.count * x->schedule.element);
    }
    TRY(make_room(x));
    x->op = op;
    return 0;
}

void span_let_go(struct span *x)
{
    const struct solo_op *op = x->op;
    x->op = NULL;
    for (uint32_t i = 0; op && i < op->out_count; i++) {
        net_divert(x->net, op->out[i].bytes, op->out[i].count * x->schedule.result);
    }
    if (op) {
        net_divert(x->net, x->scratch, x->scratch_held);
    }
}
