/* The numbers of a node: what node/work.c does with tensors, done with cells. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_node.h"

/* ---- numbers -------------------------------------------------------------------------------- */

uint64_t sim_mix(uint64_t a, uint64_t b)
{
    struct rng rng = {a ^ (b * 0x9e3779b97f4a7c15u)};
    return rng_next(&rng);
}

uint64_t cells_digest(const uint64_t *cells, uint32_t count, uint64_t index)
{
    uint64_t digest = sim_mix(index, count);
    for (uint32_t i = 0; i < count; i++) {
        digest = sim_mix(digest, cells[i]);
    }
    return digest;
}

uint64_t node_digest(const struct world *world, const struct sim_node *node)
{
    uint64_t digest = cells_digest(node->anchor, world->cells, 1);
    digest += world->momentum ? cells_digest(node->momentum, world->momentum_cells, 2) : 0;
    return digest ? digest : 1;
}

struct span work_span(const struct world *world, const struct plan *plan, uint32_t chunk)
{
    struct plan_chunk place = plan_chunk(plan, chunk);
    uint32_t first = 0;
    for (uint32_t i = 0; i < (uint32_t)place.section; i++) {
        first += world->section_cells[i];
    }
    return (struct span){first + (uint32_t)(place.first / PLAN_CHUNK_ELEMENTS_MIN),
                         (place.elements + PLAN_CHUNK_ELEMENTS_MIN - 1) / PLAN_CHUNK_ELEMENTS_MIN};
}

static struct blob *cells_blob(const uint64_t *cells, uint32_t count)
{
    struct blob *blob = blob_new(count * 8);
    memcpy(blob->cells, cells, count * sizeof *cells);
    return blob;
}

uint64_t *cells_new(const struct world *world)
{
    uint64_t *cells = calloc(world->cells + 1, sizeof *cells);
    if (!cells) {
        abort();
    }
    return cells;
}

struct msg_settings sim_settings(const struct world *world)
{
    struct msg_settings settings = {.layout_hash = 7, .tensor_count = 4};
    snprintf(settings.interval, sizeof settings.interval, "10");
    snprintf(settings.outer, sizeof settings.outer, "avg");
    snprintf(settings.codec, sizeof settings.codec, "fp32");
    snprintf(settings.solo_version, sizeof settings.solo_version, "sim");
    memcpy(settings.elements, world->model.elements, sizeof settings.elements);
    return settings;
}

void work_parked_free(struct sim_node *node)
{
    for (uint32_t i = 0; i < node->parked_count; i++) {
        blob_drop(node->parked[i]);
    }
    free(node->parked);
    node->parked = NULL;
    node->parked_count = node->parked_now = 0;
}

/* ---- sending -------------------------------------------------------------------------------- */

void work_send_chunk(struct world *world, struct sim_node *node, const struct action *action)
{
    const struct round *round = &node->member->round;
    struct span span = work_span(world, &round->plan, action->chunk);
    struct frame frame = {
        .type = action->type == ACTION_SEND_DELTA ? FRAME_DELTA : FRAME_MEAN,
        .epoch = round->id.epoch,
        .round = round->id.round,
        .attempt = round->id.attempt,
        .chunk = action->chunk,
        .size = span.count * 8,
    };
    struct blob *blob = cells_blob(node->mean + span.first, span.count);
    for (uint32_t i = 0; frame.type == FRAME_DELTA && i < span.count; i++) {
        blob->cells[i] = node->anchor[span.first + i] - node->local[span.first + i];
    }
    uint32_t link = node->links[action->peer];
    if (link == NO_CONN) {
        sim_fail(world, "n%u sends to a peer without a link", node->rank);
    } else {
        unsigned side = world->conns[link].proc[1] == node->proc;
        conn_send_frame(world, link, side, &frame, blob, node->round_serial);
    }
    blob_drop(blob);
}

void work_send_state(struct world *world, struct sim_node *node, const struct action *action)
{
    struct plan plan;
    plan_init_state(&plan, &world->model);
    bool momentum = action->kind == STATE_MOMENTUM;
    struct frame frame = {.type = action->type == ACTION_FETCH   ? FRAME_FETCH
                                  : action->type == ACTION_SERVE ? FRAME_STATE
                                                                 : FRAME_NO_STATE,
                          .flags = momentum ? FRAME_MOMENTUM : 0,
                          .round = action->version,
                          .chunk = action->chunk};
    struct blob *blob = NULL;
    uint32_t serial = NO_SERIAL;
    if (action->type == ACTION_SERVE) {
        struct span span = work_span(world, &plan, action->chunk);
        const uint64_t *from = momentum ? node->momentum : node->anchor;
        blob = cells_blob(from + span.first, span.count);
        frame.size = blob->size;
        serial = node->serve_serial;
        if (action->version != node->version) {
            sim_fail(world, "n%u serves version %llu and holds %llu", node->rank,
                     (unsigned long long)action->version, (unsigned long long)node->version);
        }
    }
    uint32_t link = node->links[action->peer];
    if (link != NO_CONN) {
        unsigned side = world->conns[link].proc[1] == node->proc;
        conn_send_frame(world, link, side, &frame, blob, serial);
    }
    blob_drop(blob);
}

/* ---- the round ------------------------------------------------------------------------------ */

static struct sim_event *later(struct world *world, struct sim_node *node, enum sim_kind kind,
                               uint64_t most_us)
{
    uint64_t after_us = 1 + sim_random(world, (uint32_t)most_us);
    struct sim_event *event = sim_post(world, kind, node->proc, after_us);
    event->id = node->member->round.id;
    event->serial = node->round_serial;
    event->ok = true;
    return event;
}

void work_round(struct world *world, struct sim_node *node)
{
    const struct round *round = &node->member->round;
    work_parked_free(node);
    node->parked_count = round->shard.count * round->count;
    node->parked = calloc(node->parked_count + 1, sizeof *node->parked);
    if (!node->parked) {
        abort();
    }
    node->mean_digest = 0;
    node->encoding = 0;
    if (round->version != node->version) {
        sim_fail(world, "n%u begins a round on version %llu and holds %llu", node->rank,
                 (unsigned long long)round->version, (unsigned long long)node->version);
    }
    (void)world;
}

void work_encode(struct world *world, struct sim_node *node, uint32_t chunk)
{
    const struct round *round = &node->member->round;
    bool own = plan_owner(&round->plan, chunk) == round->slot;
    if (!own && ++node->encoding > ROUND_ENCODED_MAX) {
        sim_fail(world, "n%u needs more than %u encode buffers", node->rank, ROUND_ENCODED_MAX);
    }
    struct sim_event *event = later(world, node, SIM_ENCODED, 300);
    event->chunk = chunk;
    event->ok = !node->nan; /* until the merge is over: the values are the same */
}

void work_reduce(struct world *world, struct sim_node *node, uint32_t chunk)
{
    const struct round *round = &node->member->round;
    struct span span = work_span(world, &round->plan, chunk);
    memset(node->mean + span.first, 0, span.count * sizeof *node->mean);
    uint32_t contributions = 0;
    for (uint32_t slot = 0; slot < round->count; slot++) {
        if (round->weights[slot] == 0) {
            continue;
        }
        contributions++;
        struct blob **parked = &node->parked[(chunk - round->shard.first) * round->count + slot];
        if (slot != round->slot && !*parked) {
            sim_fail(world, "n%u reduces chunk %u without slot %u", node->rank, chunk, slot);
            return;
        }
        for (uint32_t i = 0; i < span.count; i++) {
            uint64_t delta = slot == round->slot
                                 ? node->anchor[span.first + i] - node->local[span.first + i]
                                 : (*parked)->cells[i];
            node->mean[span.first + i] += delta * round->weights[slot];
        }
        node->parked_now -= *parked != NULL;
        blob_drop(*parked);
        *parked = NULL;
    }
    if (contributions != round->contributors) {
        sim_fail(world, "n%u: %u contributions of %u", node->rank, contributions,
                 round->contributors);
    }
    node->mean_digest += cells_digest(node->mean + span.first, span.count, chunk);
    later(world, node, SIM_REDUCED, 300)->chunk = chunk;
}

void work_apply(struct world *world, struct sim_node *node)
{
    check_applied(world, node, &node->member->round.id);
    for (uint32_t i = 0; i < world->cells; i++) {
        uint64_t step = node->mean[i];
        if (world->momentum && i < world->momentum_cells) {
            node->momentum[i] = 3 * node->momentum[i] + step;
            step += 5 * node->momentum[i];
        }
        node->anchor[i] -= step;
    }
    if (node->memory_next && world->cells > 0) {
        node->anchor[0] ^= 1; /* a bit of memory fell over */
        node->memory_next = false;
    }
    work_parked_free(node);
    node->round_serial++;
    node->version = node->member->round.id.round;
    node->residual_epoch = node->member->round.id.epoch;
    later(world, node, SIM_APPLIED, world->apply_us);
}

void work_drop(struct world *world, struct sim_node *node)
{
    work_parked_free(node);
    node->round_serial++;
    (void)world;
}

/* ---- the state ------------------------------------------------------------------------------ */

void work_adopt(struct world *world, struct sim_node *node, const struct action *action)
{
    size_t bytes = world->cells * sizeof(uint64_t);
    if (!action->flag) {
        memcpy(node->anchor, node->staged, bytes);
        memcpy(node->momentum, node->staged_momentum, bytes);
    } else if (node->member->attach.held.held) {
        memcpy(node->anchor, node->file_anchor, bytes);
        memcpy(node->momentum, node->file_momentum, bytes);
    } else {
        memcpy(node->anchor, node->local, bytes);
        memset(node->momentum, 0, bytes);
    }
    node->version = action->version;
    node->residual_epoch = (struct epoch){0};
    later(world, node, SIM_ADOPTED, 2000);
}

void work_save(struct world *world, struct sim_node *node)
{
    if (node->file_used) {
        memcpy(node->file_anchor, node->anchor, world->cells * sizeof(uint64_t));
        memcpy(node->file_momentum, node->momentum, world->cells * sizeof(uint64_t));
        node->file = node->member->held;
        node->file_held = true;
    }
}
