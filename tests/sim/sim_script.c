/* A node's life and its script: it attaches, trains, merges, ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_node.h"

/* ---- life ----------------------------------------------------------------------------------- */

void node_free(struct sim_node *node)
{
    work_parked_free(node);
    uint64_t *arrays[] = {node->anchor,        node->momentum,       node->local,
                          node->staged,        node->mean,           node->file_anchor,
                          node->file_momentum, node->staged_momentum};
    for (uint32_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        free(arrays[i]);
    }
    free(node->member);
    free(node->memory);
    memset(node, 0, sizeof *node);
}

static void node_new(struct world *world, struct sim_node *node, uint32_t proc)
{
    node->proc = proc;
    node->rank = proc - 1;
    node->member = malloc(sizeof *node->member);
    node->memory = malloc(member_memory_bytes(&world->model));
    if (!node->member || !node->memory) {
        abort();
    }
    node->anchor = cells_new(world);
    node->momentum = cells_new(world);
    node->local = cells_new(world);
    node->staged = cells_new(world);
    node->staged_momentum = cells_new(world);
    node->mean = cells_new(world);
    node->file_anchor = cells_new(world);
    node->file_momentum = cells_new(world);
    node->file_used = sim_chance(world, 30);
    node->interval = 5 + sim_random(world, 20);
    node->step_us = 1000 + sim_random(world, 100000);
    node->steps_total = node->interval * (2 + sim_random(world, 8));
}

void node_start(struct world *world, uint32_t proc)
{
    struct sim_node *node = &world->nodes[proc];
    if (!node->member) {
        node_new(world, node, proc);
    }
    world->procs[proc].alive = true;
    node->instance = sim_mix(world->seed, (uint64_t)proc << 32 | world->procs[proc].life);
    node->control = NO_CONN;
    memset(node->links, 0xff, sizeof node->links);
    node->attached = node->joined = node->waiting = node->final = node->over = false;
    node->steps_done = node->steps_at_anchor = node->committed_steps = 0;
    node->encoding = 0;
    node->nan = node->flip_next = node->memory_next = node->unseen_next = node->twice_next = false;
    node->version = node->local_version = UINT64_MAX;
    node->must_end_us = 0;
    node->born_us = world->now_us;
    node->residual_epoch = (struct epoch){0};
    for (uint32_t i = 0; i < world->cells; i++) {
        node->local[i] = sim_mix(node->instance, i); /* its own random start */
    }
    struct member_config config = {
        .identity = {.node_rank = node->rank, .device_count = 1, .instance = node->instance},
        .seed = node->instance,
        .timeout_us = world->timeout_us,
        .lease_us = world->lease_us};
    snprintf(config.job_id, sizeof config.job_id, "sim");
    snprintf(config.identity.name, sizeof config.identity.name, "node%u", node->rank);
    snprintf(config.identity.address, sizeof config.identity.address, "%u", proc);
    member_init(node->member, &config);
    sim_trace(world, "n%u starts, life %u", node->rank, world->procs[proc].life);
    struct member_event start = {.type = MEMBER_START};
    node_feed(world, node, &start);
    sim_post(world, SIM_SCRIPT, proc, 50000 + sim_random(world, 3000000))->serial =
        ++node->script_serial;
}

void node_kill(struct world *world, uint32_t proc)
{
    struct sim_node *node = &world->nodes[proc];
    work_parked_free(node);
    node->joined = node->waiting = false;
    node->script_serial++;
    node->round_serial++;
    node->serve_serial++;
}

/* ---- results -------------------------------------------------------------------------------- */

static void train(struct world *world, struct sim_node *node)
{
    node->turn_us = world->now_us;
    node->boundary_us = world->now_us + node->interval * node->step_us;
    sim_post(world, SIM_SCRIPT, node->proc, node->interval * node->step_us)->serial =
        ++node->script_serial;
}

static void take_anchor(struct world *world, struct sim_node *node)
{
    memcpy(node->local, node->anchor, world->cells * sizeof(uint64_t));
    node->steps_at_anchor = node->steps_done;
    node->local_version = node->version;
}

void script_joined(struct world *world, struct sim_node *node)
{
    const struct member_result *result = &world->out->result;
    node->waiting = false;
    node->last_rc = result->rc;
    sim_trace(world, "n%u JOINED rc %d version %llu %s", node->rank, result->rc,
              (unsigned long long)result->version, result->rc < 0 ? node->member->text : "");
    check_joined(world, node, result);
    if (result->rc == 0) {
        node->joined = true;
        take_anchor(world, node);
        train(world, node);
    }
}

static void leave_later(struct world *world, struct sim_node *node)
{
    node->final = true;
    sim_post(world, SIM_SCRIPT, node->proc, 1 + sim_random(world, 100000))->serial =
        ++node->script_serial;
}

void script_complete(struct world *world, struct sim_node *node)
{
    const struct member_result *result = &world->out->result;
    sim_trace(world, "n%u COMPLETE rc %d outcome %d version %llu attempts %u %s", node->rank,
              result->rc, result->outcome, (unsigned long long)result->version, result->attempts,
              result->rc < 0 ? node->member->text : "");
    check_complete(world, node, result);
    node->waiting = node->nan = false;
    node->last_rc = result->rc;
    if (result->rc == 0) {
        take_anchor(world, node);
        node->merges++;
        node->rejoins += result->outcome == SOLO_REJOINED;
    } else {
        node->errors++;
    }
    bool ends = node->steps_done >= node->steps_total || (result->rc < 0 && sim_chance(world, 50));
    if (ends) {
        leave_later(world, node);
    } else {
        train(world, node);
    }
}

void script_due(struct world *world, struct sim_node *node, bool due)
{
    if (!due || node->waiting || !node->joined || node->final) {
        return;
    }
    uint64_t steps = (world->now_us - node->turn_us) / node->step_us + 1;
    uint64_t at_us = node->turn_us + steps * node->step_us;
    if (at_us < node->boundary_us) {
        node->boundary_us = at_us;
        sim_post(world, SIM_SCRIPT, node->proc, at_us - world->now_us)->serial =
            ++node->script_serial;
    }
}

void script_over(struct world *world, struct sim_node *node, int rc)
{
    sim_trace(world, "n%u OVER rc %d: %s", node->rank, rc, node->member->text);
    node->over = true;
    node->joined = false;
    node->script_serial++;
    if (node->waiting) {
        sim_fail(world, "n%u is over and its script still waits", node->rank);
    }
    for (uint32_t i = 0; i < SOLO_MEMBERS_MAX; i++) {
        if (node->links[i] != NO_CONN) {
            sim_fail(world, "n%u is over and has a link", node->rank);
        }
    }
    if (node->control != NO_CONN) {
        conn_close(world, node->control, 0);
        node->control = NO_CONN;
    }
}

/* ---- the script's turn ---------------------------------------------------------------------- */

static void attach(struct world *world, struct sim_node *node)
{
    struct member_attach attach = {.model = world->model,
                                   .settings = sim_settings(world),
                                   .momentum = world->momentum,
                                   .memory = node->memory};
    if (node->file_held) {
        attach.held = node->file;
    }
    node->attached = node->waiting = true;
    node->wait_since_us = world->now_us;
    struct member_event event = {.type = MEMBER_ATTACH, .attach = &attach};
    node_feed(world, node, &event);
}

static void submit(struct world *world, struct sim_node *node)
{
    uint64_t steps = (world->now_us - node->turn_us) / node->step_us;
    steps = steps < node->interval ? steps : node->interval;
    for (uint32_t i = 0; i < world->cells; i++) {
        node->local[i] += sim_mix(node->instance + node->steps_done, steps * 1000003 + i);
    }
    node->steps_done += steps;
    node->waiting = true;
    node->wait_since_us = world->now_us;
    uint64_t since = node->steps_done - node->steps_at_anchor;
    struct member_event event = {.type = MEMBER_SUBMIT,
                                 .submit = {.samples = since * SIM_SAMPLES_PER_STEP,
                                            .steps = since,
                                            .lr_sum = 0.1 * (double)since,
                                            .final = node->steps_done >= node->steps_total}};
    sim_trace(world, "n%u SUBMIT steps %llu of %llu", node->rank,
              (unsigned long long)node->steps_done, (unsigned long long)node->steps_total);
    node_feed(world, node, &event);
}

void script_turn(struct world *world, struct sim_node *node)
{
    if (!node->attached) {
        attach(world, node);
    } else if (node->final) {
        struct member_event event = {.type = MEMBER_LEAVE,
                                     .ok = node->steps_done >= node->steps_total,
                                     .text = "its script ended"};
        node_feed(world, node, &event);
    } else if (node->joined && !node->waiting) {
        submit(world, node);
    }
}
