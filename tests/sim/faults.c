/* What goes wrong, and when: planned from the seed before the world begins. */
#include "sim.h"

#define CALM_AFTER_US 30000000u

static void start_nodes(struct world *world)
{
    sim_post(world, SIM_START, SIM_MASTER, sim_random(world, 1000000));
    for (uint32_t i = 1; i <= world->node_count; i++) {
        bool late = i > world->founders;
        sim_post(world, SIM_START, i, sim_random(world, late ? 20000000 : 2000000));
    }
}

static uint32_t any_proc(struct world *world)
{
    return 1 + sim_random(world, world->node_count);
}

static uint64_t span_us(struct world *world)
{
    static const uint32_t most_us[] = {50000, 1000000, 5000000, 15000000};
    return 1 + sim_random(world, most_us[sim_random(world, 4)]);
}

static void plan_one(struct world *world, uint32_t index)
{
    struct trouble_plan *fault = &world->faults[index];
    *fault = (struct trouble_plan){.type = (enum trouble)sim_random(world, TROUBLE_TYPES),
                                   .at_us = sim_random(world, 20000000),
                                   .for_us = span_us(world),
                                   .proc = sim_chance(world, 20) ? SIM_MASTER : any_proc(world),
                                   .other = any_proc(world),
                                   .comes_back = sim_chance(world, 70)};
    fault->group = ((uint64_t)sim_random(world, UINT32_MAX) << 32) | sim_random(world, UINT32_MAX);
    if (fault->type == TROUBLE_ONE_WAY && fault->proc != SIM_MASTER && sim_chance(world, 30)) {
        fault->for_us = 120000000; /* they never reach each other: somebody has to go */
    }
    if (fault->proc == SIM_MASTER) {
        fault->comes_back = true; /* a job without a master for ever ends in timeouts alone */
    }
    if (sim_chance(world, 50)) { /* in the middle of whatever happens then */
        fault->at_event = 1 + sim_random(world, 3000);
    } else {
        sim_post(world, SIM_FAULT, SIM_MASTER, fault->at_us)->serial = index;
    }
}

void faults_plan(struct world *world)
{
    world->node_count += sim_chance(world, 50) ? sim_random(world, 4) : 0;
    if (world->node_count > SIM_NODES_MAX) {
        world->node_count = SIM_NODES_MAX;
    }
    world->linger = sim_chance(world, 10);
    start_nodes(world);
    world->fault_count = sim_chance(world, 25) ? 0 : 1 + sim_random(world, 12);
    for (uint32_t i = 0; i < world->fault_count; i++) {
        plan_one(world, i);
    }
    world->calm_us = CALM_AFTER_US; /* also without faults: nodes come until then */
    world->end_us = CALM_AFTER_US + 900000000u;
}

/* ---- doing it ------------------------------------------------------------------------------- */

static void crash(struct world *world, struct trouble_plan *fault)
{
    if (!world->procs[fault->proc].alive || (fault->proc && world->nodes[fault->proc].over)) {
        return;
    }
    sim_trace(world, "FAULT %s dies%s", fault->proc ? "node" : "master",
              fault->type == TROUBLE_GONE ? " silently" : "");
    proc_kill(world, fault->proc, fault->type == TROUBLE_GONE);
    if (fault->proc != SIM_MASTER) {
        node_kill(world, fault->proc);
    }
    if (fault->comes_back) {
        sim_post(world, SIM_START, fault->proc, fault->for_us);
    }
}

static void stop(struct world *world, struct trouble_plan *fault)
{
    struct proc *proc = &world->procs[fault->proc];
    if (proc->alive && proc->stopped_until_us < world->now_us) {
        proc->stopped_until_us = world->now_us + fault->for_us;
        world->nodes[fault->proc].wait_since_us += fault->for_us;
    }
}

static void cut(struct world *world, struct trouble_plan *fault, bool control)
{
    for (uint32_t i = 0; i < world->conn_count; i++) {
        struct conn *conn = &world->conns[i];
        bool ours = conn->proc[0] == fault->proc || conn->proc[1] == fault->proc;
        if (conn->used && conn->control == control && ours) {
            conn_break(world, i);
        }
    }
}

static void separate(struct world *world, struct trouble_plan *fault)
{
    struct block block = {
        .until_us = world->now_us + fault->for_us, .from = fault->proc, .to = fault->other};
    if (fault->type == TROUBLE_SPLIT) {
        block.from = block.to = UINT32_MAX;
        block.from_group = fault->group;
        block.to_group = ~fault->group;
        world_block(world, &block);
        block.from_group = ~fault->group;
        block.to_group = fault->group;
    }
    world_block(world, &block);
}

static void script_fault(struct world *world, struct trouble_plan *fault)
{
    struct sim_node *node = &world->nodes[fault->proc];
    if (fault->proc == SIM_MASTER || !world->procs[fault->proc].alive) {
        return;
    }
    node->nan = node->nan || fault->type == TROUBLE_NAN;
    node->unseen_next = node->unseen_next || fault->type == TROUBLE_UNSEEN;
    node->flip_next = node->flip_next || fault->type == TROUBLE_FLIP;
    node->memory_next = node->memory_next || fault->type == TROUBLE_MEMORY;
    node->twice_next = node->twice_next || fault->type == TROUBLE_TWICE;
    world->bits_changed = world->bits_changed || node->unseen_next || node->memory_next;
    if (fault->type == TROUBLE_LEAVE && node->joined && !node->over) {
        node->final = true; /* the script ends at once, whatever is under way */
        sim_post(world, SIM_SCRIPT, fault->proc, 0)->serial = ++node->script_serial;
    }
}

void faults_do(struct world *world, struct trouble_plan *fault)
{
    if (fault->done) {
        return;
    }
    fault->done = true;
    sim_trace(world, "FAULT type %d proc %d other %d for %.3f s", fault->type, (int)fault->proc - 1,
              (int)fault->other - 1, (double)fault->for_us / 1e6);
    switch (fault->type) {
    case TROUBLE_CRASH:
    case TROUBLE_GONE:
        crash(world, fault);
        return;
    case TROUBLE_STOP:
        stop(world, fault);
        return;
    case TROUBLE_CUT_CONTROL:
    case TROUBLE_CUT_LINKS:
        cut(world, fault, fault->type == TROUBLE_CUT_CONTROL);
        return;
    case TROUBLE_ONE_WAY:
    case TROUBLE_SPLIT:
        separate(world, fault);
        return;
    case TROUBLE_NAN:
    case TROUBLE_FLIP:
    case TROUBLE_MEMORY:
    case TROUBLE_UNSEEN:
    case TROUBLE_LEAVE:
    case TROUBLE_TWICE:
        script_fault(world, fault);
        return;
    case TROUBLE_HALF_TOLD:
        world->dies_after = 1 + sim_random(world, 4);
        world->dies_for_us = fault->for_us;
        return;
    case TROUBLE_TYPES:
        return;
    }
}

void faults_at_event(struct world *world)
{
    if (world->now_us >= world->calm_us) {
        return;
    }
    for (uint32_t i = 0; i < world->fault_count; i++) {
        struct trouble_plan *fault = &world->faults[i];
        if (!fault->done && fault->at_event && world->events >= fault->at_event) {
            faults_do(world, fault);
        }
    }
}
