#include "protocol/round.h"

#include <string.h>

#include "base/err.h"
#include "protocol/bits.h"

static uint64_t bitmap_bytes(const struct plan_model *model)
{
    return (plan_chunks_max(model) / 8 + 8) & ~(uint64_t)7;
}

uint64_t round_memory_bytes(const struct plan_model *model)
{
    return 2 * bitmap_bytes(model) + shard_memory_bytes(model);
}

void round_begin(struct round *round, const struct msg_begin *begin, const struct plan_model *model,
                 uint32_t slot, void *memory, uint64_t now_us)
{
    memset(round, 0, sizeof *round);
    MUST(plan_init(&round->plan, model, begin->count, PLAN_MESH) == 0); /* ATTACH has tried it */
    round->id = begin->id;
    round->phase = ROUND_EXCHANGING;
    round->version = begin->version;
    round->count = begin->count;
    round->slot = slot;
    round->lr_sum = begin->lr_sum;
    round->steps = begin->steps;
    round->job_step = begin->job_step;
    round->stall_us = (uint64_t)begin->stall_ms * 1000;
    round->began_us = round->progress_us = now_us;
    round->turn = (slot + 1) % begin->count;
    for (uint32_t i = 0; i < begin->count; i++) {
        round->weights[i] = begin->weights[i];
        round->weight_sum += begin->weights[i];
        round->contributors += begin->weights[i] > 0;
    }
    round->mean_here = (uint8_t *)memory;
    round->reduced = round->mean_here + bitmap_bytes(model);
    memset(memory, 0, 2 * bitmap_bytes(model));
    shard_begin(&round->shard, &round->plan, slot, round->weights,
                round->reduced + bitmap_bytes(model));
}

void round_link(struct round *round, uint32_t slot, bool up)
{
    round->slots[slot].up = up;
}

/* ---- what comes --------------------------------------------------------------------------- */

static void contributed(struct round *round, uint32_t chunk, uint32_t slot, struct out *out)
{
    if (shard_add(&round->shard, chunk, slot) == SHARD_COMPLETE) {
        out_add_peer(out, ACTION_REDUCE, 0, chunk);
    }
}

static void mean_came(struct round *round, uint32_t slot, uint32_t chunk)
{
    if (!bit_is(round->mean_here, chunk)) {
        bit_set(round->mean_here, chunk);
        round->mean_count++;
        round->slots[slot].means++;
    }
}

void round_encoded(struct round *round, uint32_t chunk, struct out *out)
{
    uint32_t owner = plan_owner(&round->plan, chunk);
    if (owner == round->slot) {
        contributed(round, chunk, owner, out);
    } else if (round->slots[owner].up) {
        out_add_peer(out, ACTION_SEND_DELTA, round->slot_peers[owner], chunk);
    } /* else the attempt fails: its link is lost */
}

void round_sent(struct round *round, uint32_t slot, enum frame_type type)
{
    struct round_slot *to = &round->slots[slot];
    if (to->sends > 0) {
        to->sends--;
        to->deltas -= type == FRAME_DELTA && to->deltas > 0;
        round->encoded -= type == FRAME_DELTA && round->encoded > 0;
    }
}

void round_reduced(struct round *round, uint32_t chunk)
{
    bit_set(round->reduced, chunk - round->shard.first);
    mean_came(round, round->slot, chunk);
}

enum round_take round_take(const struct round *round, uint32_t slot, enum frame_type type,
                           uint32_t chunk)
{
    if (chunk >= round->plan.chunk_count || slot >= round->count || slot == round->slot) {
        return TAKE_FAULT;
    }
    uint32_t owner = plan_owner(&round->plan, chunk);
    if (type == FRAME_MEAN) {
        return owner == slot && !bit_is(round->mean_here, chunk) ? TAKE_HERE : TAKE_FAULT;
    }
    return owner == round->slot && round->weights[slot] > 0 &&
                   !shard_has(&round->shard, chunk, slot)
               ? TAKE_HERE
               : TAKE_FAULT;
}

void round_received(struct round *round, uint32_t slot, enum frame_type type, uint32_t chunk,
                    struct out *out)
{
    if (round_take(round, slot, type, chunk) != TAKE_HERE) {
        return;
    }
    if (type == FRAME_MEAN) {
        mean_came(round, slot, chunk);
    } else {
        contributed(round, chunk, slot, out);
    }
}

/* ---- what goes ---------------------------------------------------------------------------- */

static uint32_t sends_max(const struct round *round)
{
    uint32_t share = ROUND_SENDS_ALL / round->count;
    return share < ROUND_SENDS_MIN   ? ROUND_SENDS_MIN
           : share > ROUND_SENDS_MAX ? ROUND_SENDS_MAX
                                     : share;
}

static bool may_encode(const struct round *round, uint32_t owner)
{
    const struct round_slot *slot = &round->slots[owner];
    if (slot->encode_next >= plan_owned_count(&round->plan, owner) ||
        slot->encode_next >= slot->means + round->plan.window) {
        return false;
    }
    return owner == round->slot ||
           (slot->up && slot->sends < sends_max(round) && slot->deltas < sends_max(round) / 2 &&
            round->encoded < ROUND_ENCODED_MAX);
}

static void encode_next(struct round *round, uint32_t owner, struct out *out)
{
    struct round_slot *slot = &round->slots[owner];
    uint32_t chunk = plan_owned_first(&round->plan, owner) + slot->encode_next++;
    if (owner != round->slot) {
        slot->sends++;
        slot->deltas++;
        round->encoded++;
    }
    out_add_peer(out, ACTION_ENCODE, 0, chunk);
}

/* Round and round over the owners, one chunk each: the waves. */
static void pump_deltas(struct round *round, struct out *out)
{
    if (round->weights[round->slot] == 0) {
        return;
    }
    for (uint32_t idle = 0; idle < round->count;) {
        if (may_encode(round, round->turn)) {
            encode_next(round, round->turn, out);
            idle = 0;
        } else {
            idle++;
        }
        round->turn = (round->turn + 1) % round->count;
    }
}

/* Deltas before means: a mean waits for the slowest of its deltas, so the sooner these are all
 * on their way, the less is every owner's line at the mercy of one slow path to it (four nodes,
 * int8 at 100 Mbit/s: 1.08 of the line's time, 1.13 in turns). Means go when a link would run
 * dry, or has had its deltas. Between two there is one path: no such wait, and a mean is sent
 * from where it was made. */
static uint32_t means_max(const struct round *round, uint32_t to)
{
    const struct round_slot *slot = &round->slots[to];
    bool deltas_wait = round->count > 2 && round->weights[round->slot] > 0 &&
                       slot->encode_next < plan_owned_count(&round->plan, to) &&
                       slot->encode_next < slot->means + round->plan.window;
    return deltas_wait ? ROUND_SENDS_LOW : sends_max(round);
}

static void pump_means_to(struct round *round, uint32_t to, struct out *out)
{
    struct round_slot *slot = &round->slots[to];
    while (slot->up && slot->sends < means_max(round, to) && slot->mean_next < round->shard.count &&
           bit_is(round->reduced, slot->mean_next)) {
        slot->sends++;
        out_add_peer(out, ACTION_SEND_MEAN, round->slot_peers[to],
                     round->shard.first + slot->mean_next++);
    }
}

/* Nobody contributes (all weights are 0): an owner's means are zero, made a few at a time. */
static void pump_zeros(struct round *round, struct out *out)
{
    while (round->contributors == 0 && round->zero_next < round->shard.count &&
           round->zero_next < round->slots[round->slot].means + round->plan.window) {
        out_add_peer(out, ACTION_REDUCE, 0, round->shard.first + round->zero_next++);
    }
}

void round_pump(struct round *round, struct out *out)
{
    if (round->count > 2) {
        pump_deltas(round, out);
    }
    for (uint32_t i = 1; i < round->count; i++) {
        pump_means_to(round, (round->slot + i) % round->count, out);
    }
    pump_zeros(round, out);
    pump_deltas(round, out);
}

bool round_whole(const struct round *round)
{
    return round->mean_count == round->plan.chunk_count;
}

bool round_needs(const struct round *round, uint32_t slot)
{
    const struct round_slot *other = &round->slots[slot];
    if (other->sends > 0 || other->mean_next < round->shard.count) {
        return true; /* I owe it something */
    }
    return other->means < plan_owned_count(&round->plan, slot);
}

uint32_t round_owed(const struct round *round, uint8_t *owed)
{
    uint32_t count = shard_owed(&round->shard, owed);
    if (count > 0) {
        return count; /* owners may be waiting for the same contributions */
    }
    for (uint32_t slot = 0; slot < round->count; slot++) {
        if (round->slots[slot].means < plan_owned_count(&round->plan, slot)) {
            bit_set(owed, slot);
            count++;
        }
    }
    return count;
}
