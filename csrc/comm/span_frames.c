/* The header of a frame says which collective it is of. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "comm/span_inside.h"

static void fail(struct span *x, int rc, const char *text)
{
    if (x->rc == 0) {
        x->rc = rc;
        snprintf(x->text, sizeof x->text, "%s", text);
    }
}

static uint64_t told_count(const struct span *x, uint64_t transfer_bytes)
{
    return op_is_equal(x->op->kind) ? x->header.count : transfer_bytes;
}

/* 24 bits of a length: enough to see that two differ; who sees it in full tells the values. */
static uint32_t digest(uint64_t count)
{
    return (uint32_t)((count * UINT64_C(0x9e3779b97f4a7c15)) >> 40);
}

/* Where lengths differ by rank: what this rank wants of another, or gives to it. */
static uint64_t wanted_of(const struct span *x, uint32_t place)
{
    return x->op->kind == SOLO_OP_REDUCE_SCATTER ? x->op->out[0].count : x->op->out[place].count;
}

static uint64_t given_to(const struct span *x, uint32_t place)
{
    return x->op->kind == SOLO_OP_ALLGATHER ? x->op->in[0].count : x->op->in[place].count;
}

static bool lengths_differ_by_rank(const struct span *x)
{
    return !op_is_equal(x->op->kind) && !op_has_root(x->op->kind);
}

struct frame span_frame(const struct span *x, uint32_t to, uint32_t piece, uint32_t stage,
                        uint64_t transfer_bytes, uint64_t offset)
{
    uint32_t high = lengths_differ_by_rank(x) ? digest(wanted_of(x, to)) : x->header.root;
    return (struct frame){.type = FRAME_GROUP,
                          .flags = transfer_bytes ? 0 : NET_EMPTY,
                          .epoch = {told_count(x, transfer_bytes),
                                    x->header.kind | x->header.dtype << 8 | x->header.reduce << 16},
                          .round = x->header.sequence,
                          .attempt = stage | high << 8,
                          .chunk = piece,
                          .extra = offset};
}

/* What a rank calls whose frame it is, for messages. Where lengths may differ by rank a frame tells
 * the bytes of its transfer: those of a piece, if there are several. */
static struct op_header header_in(const struct frame *frame)
{
    struct op_header header = {.sequence = frame->round,
                               .count = frame->epoch.incarnation,
                               .kind = frame->epoch.counter & 255,
                               .dtype = frame->epoch.counter >> 8 & 255,
                               .reduce = frame->epoch.counter >> 16 & 255,
                               .root = frame->attempt >> 8};
    if (header.kind < SOLO_OP_KIND_COUNT && header.dtype < SOLO_DTYPE_COUNT &&
        !op_is_equal((enum solo_op_kind)header.kind)) {
        bool cut =
            op_reduces((enum solo_op_kind)header.kind) && header.count >= SCHEDULE_PIECE_BYTES;
        header.count =
            cut ? OP_COUNT_UNKNOWN : header.count / solo_dtype_bytes((enum solo_dtype)header.dtype);
    }
    return header;
}

static void fail_differs(struct span *x, uint32_t from, const struct frame *frame)
{
    char mine[OP_TEXT_MAX], theirs[OP_TEXT_MAX], text[SOLO_TEXT_MAX];
    struct op_header header = header_in(frame);
    op_text(&x->header, mine);
    op_text(&header, theirs);
    snprintf(text, sizeof text, "ranks do different things: rank %u calls %s, rank %u calls %s",
             x->members[x->rank], mine, from, theirs);
    fail(x, SOLO_EMISMATCH, text);
}

void span_blame(const struct span_pair *pair, uint32_t from, const struct frame *frame)
{
    const struct op_header *mine = &pair->past[frame->round % SPAN_PAST];
    char here[OP_TEXT_MAX] = "what came after", theirs[OP_TEXT_MAX], text[SOLO_TEXT_MAX];
    struct op_header header = header_in(frame);
    op_text(&header, theirs);
    if (mine->sequence == frame->round) {
        op_text(mine, here);
    }
    snprintf(text, sizeof text, "ranks do different things: rank %u called %s, rank %u calls %s",
             pair->rank, here, from, theirs);
    net_blame(pair->net, SOLO_EMISMATCH, text);
}

static void fail_in_length(struct span *x, uint32_t from, uint64_t sent, uint64_t wanted)
{
    char op[OP_TEXT_MAX], text[SOLO_TEXT_MAX];
    op_text(&x->header, op);
    snprintf(text, sizeof text,
             "%s: rank %u gives %" PRIu64 " elements, rank %u has room for %" PRIu64, op, from,
             sent / x->schedule.element, x->members[x->rank], wanted / x->schedule.element);
    fail(x, SOLO_EMISMATCH, text);
}

/* 0: it is of the collective under way. */
static int judge(struct span *x, uint32_t from, const struct frame *frame)
{
    if (!x->op || frame->round > x->header.sequence) {
        return SOLO_EAGAIN;
    }
    struct op_header theirs = header_in(frame);
    theirs.factor = x->header.factor; /* not in the frame */
    if (lengths_differ_by_rank(x)) {
        theirs.root = 0;
    }
    bool equal = op_is_equal(x->op->kind);
    theirs.count = equal ? theirs.count : x->header.count;
    if (!op_same(&x->header, &theirs)) {
        fail_differs(x, from, frame);
        return 1;
    }
    if (frame->chunk >= x->begun) {
        return frame->chunk < x->schedule.pieces
                   ? SOLO_EAGAIN
                   : err_set(SOLO_EPEER, "rank %u sent piece %u of %u", from, frame->chunk,
                             x->schedule.pieces);
    }
    return 0;
}

int span_place(struct span *x, uint32_t from, const struct frame *frame, void **room_out)
{
    int rc = judge(x, from, frame);
    if (rc != 0) {
        return rc;
    }
    uint32_t stage = frame->attempt & 255, place;
    bool known = place_of(x, from, &place) && stage < x->schedule.stages;
    struct slot *slot =
        known && frame->chunk >= x->base ? slot_of(x, frame->chunk, stage, place) : NULL;
    if (!slot || !slot->awaited) {
        return err_set(SOLO_EPEER, "rank %u sent a part that is not its to send", from);
    }
    if (lengths_differ_by_rank(x) && frame->attempt >> 8 != digest(given_to(x, place))) {
        x->doubt = true;
    }
    uint64_t told = op_is_equal(x->op->kind) ? slot->bytes : frame->epoch.incarnation;
    bool empty = frame->flags & NET_EMPTY;
    if (told != slot->bytes || empty != (slot->bytes == 0)) {
        fail_in_length(x, from, told, slot->bytes);
        return 1;
    }
    if (empty) {
        *room_out = x->nowhere;
        return frame->size <= sizeof x->nowhere ? 0 : SOLO_EPEER;
    }
    if (frame->extra > slot->bytes || frame->size > slot->bytes - frame->extra) {
        return err_set(SOLO_EPEER, "rank %u sent bytes beyond the end of a part", from);
    }
    *room_out = slot->at + frame->extra;
    return 0;
}
