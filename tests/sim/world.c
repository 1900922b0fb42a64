/* Time, and the queue of events. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define SIM_EVENTS_MAX 20000000u

/* ---- small things --------------------------------------------------------------------------- */

uint32_t sim_random(struct world *world, uint32_t bound)
{
    return bound ? rng_below(&world->rng, bound) : 0;
}

bool sim_chance(struct world *world, uint32_t percent)
{
    return sim_random(world, 100) < percent;
}

void sim_fail(struct world *world, const char *format, ...)
{
    if (world->failure[0]) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world->failure, sizeof world->failure, format, arguments);
    va_end(arguments);
    sim_trace(world, "FAILURE: %s", world->failure);
}

void sim_trace(struct world *world, const char *format, ...)
{
    if (!world->trace) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    printf("%12.6f ", (double)world->now_us / 1e6);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

struct blob *blob_new(uint32_t size)
{
    struct blob *blob = malloc(sizeof *blob + (size + 7u) / 8 * 8);
    if (!blob) {
        abort();
    }
    blob->references = 1;
    blob->size = size;
    return blob;
}

struct blob *blob_share(struct blob *blob)
{
    blob->references++;
    return blob;
}

void blob_drop(struct blob *blob)
{
    if (blob && --blob->references == 0) {
        free(blob);
    }
}

/* ---- the queue ------------------------------------------------------------------------------ */

static bool earlier(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static uint32_t sift_up(struct world *world, uint32_t at)
{
    struct sim_event moving = world->heap[at];
    while (at > 0 && earlier(&moving, &world->heap[(at - 1) / 2])) {
        world->heap[at] = world->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    world->heap[at] = moving;
    return at;
}

struct sim_event *sim_push(struct world *world, const struct sim_event *event)
{
    if (world->heap_count == world->heap_room) {
        world->heap_room = world->heap_room ? 2 * world->heap_room : 1024;
        world->heap = realloc(world->heap, world->heap_room * sizeof *world->heap);
        if (!world->heap) {
            abort();
        }
    }
    world->heap[world->heap_count] = *event;
    return &world->heap[sift_up(world, world->heap_count++)];
}

static struct sim_event pop(struct world *world)
{
    struct sim_event first = world->heap[0];
    struct sim_event moving = world->heap[--world->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= world->heap_count) {
            break;
        }
        if (child + 1 < world->heap_count &&
            earlier(&world->heap[child + 1], &world->heap[child])) {
            child++;
        }
        if (!earlier(&world->heap[child], &moving)) {
            break;
        }
        world->heap[at] = world->heap[child];
        at = child;
    }
    if (world->heap_count > 0) {
        world->heap[at] = moving;
    }
    return first;
}

struct sim_event *sim_post(struct world *world, enum sim_kind kind, uint32_t proc,
                           uint64_t after_us)
{
    struct sim_event event = {.at_us = world->now_us + after_us,
                              .order = world->order++,
                              .kind = kind,
                              .proc = proc,
                              .life = world->procs[proc].life};
    return sim_push(world, &event);
}

/* ---- clocks --------------------------------------------------------------------------------- */

uint64_t sim_clock(const struct world *world, uint32_t proc)
{
    const struct proc *who = &world->procs[proc];
    return (uint64_t)(who->offset_us + (int64_t)world->now_us +
                      (int64_t)world->now_us / 1000000 * who->drift_ppm);
}

void sim_timer(struct world *world, uint32_t proc, uint64_t local_us)
{
    struct proc *who = &world->procs[proc];
    if (local_us == SIM_NEVER) {
        who->tick_at_us = SIM_NEVER;
        who->tick_serial++;
        return;
    }
    uint64_t local_now = sim_clock(world, proc);
    uint64_t after_us = local_us > local_now ? local_us - local_now : 0;
    after_us += after_us / 1000 * 2 / 10 + (after_us > 0); /* above any drift */
    if (who->tick_at_us == world->now_us + after_us) {
        return;
    }
    who->tick_at_us = world->now_us + after_us;
    who->tick_serial++;
    uint32_t serial = who->tick_serial;
    sim_post(world, SIM_TICK, proc, after_us)->serial = serial;
}

/* ---- running -------------------------------------------------------------------------------- */

static bool of_conn(enum sim_kind kind)
{
    return kind == SIM_ACCEPT || kind == SIM_UP || kind == SIM_GIVE_UP || kind == SIM_DOWN ||
           kind == SIM_MESSAGE || kind == SIM_HEADER || kind == SIM_PAYLOAD || kind == SIM_SENT;
}

static bool still_wanted(const struct world *world, const struct sim_event *event)
{
    if (event->kind == SIM_FAULT || event->kind == SIM_START) {
        return true;
    }
    if (of_conn(event->kind)) {
        const struct conn *conn = &world->conns[event->conn];
        if (!conn->used || conn->serial != event->conn_serial || !conn->open[event->side]) {
            return false;
        }
    }
    return world->procs[event->proc].alive && world->procs[event->proc].life == event->life;
}

static void to_process(struct world *world, struct sim_event *event)
{
    if (event->proc == SIM_MASTER) {
        chief_event(world, event);
    } else {
        node_event(world, event);
    }
}

static void deliver_conn(struct world *world, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    if (event->kind == SIM_HEADER) {
        if (conn->waiting_count[event->side] > 0 || !node_header(world, event)) {
            conn_wait(world, event);
            event->blob = NULL; /* it keeps it */
        }
        return;
    }
    if (event->kind == SIM_GIVE_UP) {
        if (conn->made) {
            return;
        }
        conn_close(world, event->conn, 0);
    }
    if (event->kind == SIM_DOWN) {
        conn->open[event->side] = false;
        conn_waiting_free(conn, event->side);
    }
    to_process(world, event);
    if (event->kind == SIM_DOWN || event->kind == SIM_GIVE_UP) {
        conn_forget(world, event->conn);
    }
}

static void deliver(struct world *world, struct sim_event *event)
{
    struct proc *proc = &world->procs[event->proc];
    if (event->kind == SIM_FAULT) {
        faults_do(world, &world->faults[event->serial]);
    } else if (event->kind == SIM_START) {
        if (!proc->alive && event->proc == SIM_MASTER) {
            chief_start(world);
        } else if (!proc->alive) {
            node_start(world, event->proc);
        }
    } else if (of_conn(event->kind)) {
        deliver_conn(world, event);
    } else if (event->kind != SIM_TICK || event->serial == proc->tick_serial) {
        proc->tick_at_us = event->kind == SIM_TICK ? SIM_NEVER : proc->tick_at_us;
        to_process(world, event);
    }
}

/* A stopped process finds what came when it goes on. */
static bool put_off(struct world *world, struct sim_event *event)
{
    uint64_t stopped_us = world->procs[event->proc].stopped_until_us;
    if (event->kind == SIM_FAULT || event->kind == SIM_START || stopped_us <= world->now_us) {
        return false;
    }
    event->at_us = stopped_us;
    event->order = world->order++;
    sim_push(world, event);
    return true;
}

static bool done(const struct world *world)
{
    if (world->now_us < world->calm_us) {
        return false;
    }
    for (uint32_t i = 1; i <= world->node_count; i++) {
        if (world->procs[i].alive && !world->nodes[i].over) {
            return false;
        }
    }
    return true;
}

bool world_run(struct world *world)
{
    while (world->heap_count > 0 && !world->failure[0] && !done(world)) {
        struct sim_event event = pop(world);
        if (event.at_us > world->end_us) {
            blob_drop(event.blob);
            break;
        }
        world->now_us = event.at_us;
        if (world->events > SIM_EVENTS_MAX) {
            sim_fail(world, "it does not come to an end");
        }
        if (still_wanted(world, &event)) {
            if (put_off(world, &event)) {
                continue;
            }
            deliver(world, &event);
            world->events++;
            faults_at_event(world);
            if ((world->events & 63) == 0) {
                check_waits(world);
            }
        }
        blob_drop(event.blob);
    }
    if (!world->failure[0]) {
        check_end(world);
    }
    return !world->failure[0];
}

void world_free(struct world *world)
{
    while (world->heap_count > 0) {
        blob_drop(world->heap[--world->heap_count].blob);
    }
    for (uint32_t i = 0; i < world->conn_count; i++) {
        for (unsigned side = 0; side < 2; side++) {
            conn_waiting_free(&world->conns[i], side);
            free(world->conns[i].waiting[side]);
        }
    }
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        node_free(&world->nodes[i]);
    }
    free(world->heap);
    free(world->conns);
    check_free(world);
    free(world->master);
    free(world->master_out);
    free(world->out);
}

/* ---- the beginning -------------------------------------------------------------------------- */

static void choose_model(struct world *world)
{
    uint32_t kind = sim_random(world, 10);
    uint32_t params = kind < 6 ? 1 + sim_random(world, 12) : 1 + sim_random(world, 60);
    if (kind == 9 && world->node_count <= 6) {
        params = 1000 + sim_random(world, 1500); /* several chunks of state */
    }
    if (world->node_count >= 6 && world->node_count <= 12 && sim_chance(world, 20)) {
        params =
            100000 + sim_random(world, 30000); /* an owner has more chunks than may be parked */
    }
    uint32_t cells[PLAN_SECTIONS] = {params, sim_random(world, 4), sim_random(world, 3),
                                     sim_random(world, 2)};
    if (kind == 0) {
        cells[SOLO_PARAM] = sim_random(world, 2); /* perhaps an empty model */
        cells[SOLO_EXACT] = cells[SOLO_MEAN] = cells[SOLO_MAX] = 0;
    }
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        uint32_t odd = sim_random(world, 255); /* the last cell is not full */
        world->model.elements[i] = cells[i] ? cells[i] * 256u - odd : 0;
        world->section_cells[i] = cells[i];
        world->cells += cells[i];
    }
    world->momentum = sim_chance(world, 60);
    world->momentum_cells = cells[SOLO_PARAM] + cells[SOLO_EXACT];
}

static void choose_network(struct world *world)
{
    static const uint32_t delays_us[] = {50, 200, 1000, 20000, 100000};
    world->delay_us = delays_us[sim_random(world, 5)];
    world->jitter_us = sim_chance(world, 50) ? world->delay_us / 2 : 3 * world->delay_us;
    world->bytes_per_s = sim_chance(world, 20) ? 1000000 : 100000000;
    for (uint32_t i = 0; i <= SIM_NODES_MAX; i++) {
        world->procs[i].offset_us = (int64_t)sim_random(world, 2000000000);
        world->procs[i].drift_ppm = (int64_t)sim_random(world, 201) - 100;
        world->procs[i].tick_at_us = SIM_NEVER;
    }
}

void world_init(struct world *world, uint64_t seed, bool trace)
{
    memset(world, 0, sizeof *world);
    world->seed = seed;
    struct rng scatter = {seed}; /* neighbours would share all but one of their numbers */
    world->rng.state = rng_next(&scatter);
    world->trace = trace;
    world->conns = calloc(SIM_CONNS_MAX, sizeof *world->conns);
    world->master = calloc(1, sizeof *world->master);
    world->master_out = calloc(1, sizeof *world->master_out);
    world->out = calloc(1, sizeof *world->out);
    if (!world->conns || !world->master || !world->master_out || !world->out) {
        abort();
    }
    uint32_t size = sim_random(world, 200);
    uint32_t few = size < 40 ? 12 : 5;
    world->founders = size == 0 ? 40 + sim_random(world, 160) : 1 + sim_random(world, few);
    world->node_count = world->founders;
    world->min_nodes = sim_chance(world, 50) ? 1 : 1 + sim_random(world, world->founders);
    world->lease_us = sim_chance(world, 50) ? 10000000 : 2000000;
    world->first_us = seed % 4 ? 0 : 1 + seed * 1234567 % 30000000; /* up to 30 s */
    world->timeout_us = 60000000;
    world->apply_us = sim_chance(world, 20) ? 1000000 : 3000;
    choose_model(world);
    choose_network(world);
    faults_plan(world);
}
