/* Time, the queue of events, and the network. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define SIM_EVENTS_MAX      20000000u
#define CONNECT_DEADLINE_US 5000000u
#define BROKEN_AFTER_US     6000000u /* of silence in one direction (TCP_USER_TIMEOUT) */

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

static struct sim_event *push(struct world *world, const struct sim_event *event)
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
    return push(world, &event);
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

/* ---- partitions ----------------------------------------------------------------------------- */

static bool covers(const struct block *block, uint32_t from, uint32_t to)
{
    if (block->from != UINT32_MAX) {
        return block->from == from && block->to == to;
    }
    return (block->from_group >> (from % 64) & 1) && (block->to_group >> (to % 64) & 1);
}

/* Until when nothing gets from one to the other; 0: it does now. */
static uint64_t blocked_until(const struct world *world, uint32_t from, uint32_t to)
{
    uint64_t until_us = 0;
    for (uint32_t i = 0; i < world->block_count; i++) {
        const struct block *block = &world->blocks[i];
        if (block->until_us > world->now_us && covers(block, from, to) &&
            block->until_us > until_us) {
            until_us = block->until_us;
        }
    }
    return until_us;
}

void world_block(struct world *world, const struct block *block)
{
    if (world->block_count < 64) {
        world->blocks[world->block_count++] = *block;
    }
}

/* ---- connections ---------------------------------------------------------------------------- */

static uint64_t delay(struct world *world)
{
    return world->delay_us + sim_random(world, (uint32_t)world->jitter_us + 1);
}

/* When something sent now by `side` arrives; SIM_NEVER: the direction is dead for so long that
 * the connection breaks first. Keeps the order of the connection. */
static uint64_t arrival(struct world *world, struct conn *conn, unsigned side, uint64_t bytes)
{
    uint64_t start_us = conn->busy_us[side] > world->now_us ? conn->busy_us[side] : world->now_us;
    start_us += bytes * 1000000u / world->bytes_per_s;
    conn->busy_us[side] = start_us;
    uint64_t blocked_us = blocked_until(world, conn->proc[side], conn->proc[!side]);
    if (blocked_us > world->now_us + BROKEN_AFTER_US) {
        return SIM_NEVER;
    }
    uint64_t at_us = (blocked_us > start_us ? blocked_us : start_us) + delay(world);
    if (at_us < conn->last_us[!side]) {
        at_us = conn->last_us[!side];
    }
    conn->last_us[!side] = at_us;
    return at_us;
}

/* Valid until the next post. */
static struct sim_event *post_to(struct world *world, uint32_t index, unsigned side,
                                 enum sim_kind kind, uint64_t at_us)
{
    const struct conn *conn = &world->conns[index];
    struct sim_event event = {.at_us = at_us,
                              .order = world->order++,
                              .kind = kind,
                              .proc = conn->proc[side],
                              .life = conn->life[side],
                              .conn = index,
                              .conn_serial = conn->serial,
                              .side = (uint8_t)side};
    return push(world, &event);
}

static uint32_t conn_free_index(struct world *world)
{
    for (uint32_t i = 0; i < world->conn_count; i++) {
        if (!world->conns[i].used) {
            return i;
        }
    }
    if (world->conn_count == SIM_CONNS_MAX) {
        sim_fail(world, "more than %u connections", SIM_CONNS_MAX);
        return 0;
    }
    return world->conn_count++;
}

static void waiting_free(struct conn *conn, unsigned side)
{
    for (uint32_t i = 0; i < conn->waiting_count[side]; i++) {
        blob_drop(conn->waiting[side][i].blob);
    }
    conn->waiting_count[side] = 0;
}

/* Both sides have ended it: the slot may be used again, under another serial. */
static void forget(struct world *world, uint32_t index)
{
    struct conn *conn = &world->conns[index];
    if (conn->used && !conn->open[0] && !conn->open[1]) {
        waiting_free(conn, 0);
        waiting_free(conn, 1);
        conn->used = false;
    }
}

uint32_t conn_dial(struct world *world, uint32_t from, uint32_t to, bool control)
{
    uint32_t index = conn_free_index(world);
    struct conn *conn = &world->conns[index];
    *conn = (struct conn){.used = true,
                          .control = control,
                          .serial = conn->serial + 1,
                          .proc = {from, to},
                          .life = {world->procs[from].life, world->procs[to].life},
                          .open = {true, true},
                          .waiting = {conn->waiting[0], conn->waiting[1]},
                          .waiting_room = {conn->waiting_room[0], conn->waiting_room[1]}};
    uint64_t at_us = arrival(world, conn, 0, 64);
    post_to(world, index, 0, SIM_GIVE_UP, world->now_us + CONNECT_DEADLINE_US);
    if (!world->procs[to].alive) {
        conn->open[1] = false;
        if (at_us != SIM_NEVER) { /* refused */
            post_to(world, index, 0, SIM_DOWN, at_us + delay(world));
        }
    } else if (at_us != SIM_NEVER) {
        post_to(world, index, 1, SIM_ACCEPT, at_us);
    }
    return index;
}

void conn_close(struct world *world, uint32_t index, unsigned side)
{
    struct conn *conn = &world->conns[index];
    if (!conn->used || !conn->open[side]) {
        return;
    }
    conn->open[side] = false;
    waiting_free(conn, side);
    if (conn->open[!side] && conn->last_us[!side] != SIM_NEVER) {
        uint64_t at_us = arrival(world, conn, side, 0);
        if (at_us == SIM_NEVER) {
            at_us = world->now_us + BROKEN_AFTER_US;
        }
        post_to(world, index, !side, SIM_DOWN, at_us);
    }
    forget(world, index);
}

/* The network loses it: what is in flight is gone, each side hears of it in its own time. */
void conn_break(struct world *world, uint32_t index)
{
    struct conn *conn = &world->conns[index];
    if (!conn->used) {
        return;
    }
    conn->serial++; /* events in flight are of another connection now */
    conn->last_us[0] = conn->last_us[1] = SIM_NEVER;
    for (unsigned side = 0; side < 2; side++) {
        waiting_free(conn, side);
        if (conn->open[side]) {
            post_to(world, index, side, SIM_DOWN, world->now_us + sim_random(world, 2000000));
        }
    }
    forget(world, index);
}

static void broken_later(struct world *world, uint32_t index)
{
    struct conn *conn = &world->conns[index];
    for (unsigned side = 0; side < 2; side++) {
        if (conn->open[side]) {
            post_to(world, index, side, SIM_DOWN,
                    world->now_us + BROKEN_AFTER_US + sim_random(world, 1000000));
        }
    }
    conn->last_us[0] = conn->last_us[1] = SIM_NEVER; /* nothing arrives any more */
}

void conn_send_blob(struct world *world, uint32_t index, unsigned side, struct blob *blob,
                    enum frame_type type)
{
    struct conn *conn = &world->conns[index];
    if (!conn->used || !conn->open[side] || conn->last_us[!side] == SIM_NEVER) {
        return;
    }
    uint64_t at_us = arrival(world, conn, side, blob->size + FRAME_HEADER_BYTES);
    if (at_us == SIM_NEVER) {
        broken_later(world, index);
        return;
    }
    struct sim_event *event = post_to(world, index, !side, SIM_MESSAGE, at_us);
    event->blob = blob_share(blob);
    event->frame.type = type;
}

void conn_send(struct world *world, uint32_t index, unsigned side, const struct msg *msg)
{
    static uint8_t bytes[FRAME_TABLE_MAX];
    int size = msg_encode(msg, bytes, sizeof bytes);
    if (size < 0) {
        sim_fail(world, "a %s message does not fit", frame_name(msg->type));
        return;
    }
    struct blob *blob = blob_new((uint32_t)size);
    memcpy(blob->cells, bytes, (size_t)size);
    conn_send_blob(world, index, side, blob, msg->type);
    blob_drop(blob);
}

void conn_send_frame(struct world *world, uint32_t index, unsigned side, const struct frame *frame,
                     struct blob *blob, uint32_t serial)
{
    struct conn *conn = &world->conns[index];
    if (!conn->used || !conn->open[side] || conn->last_us[!side] == SIM_NEVER) {
        return;
    }
    uint32_t size = blob ? blob->size : 0;
    uint64_t at_us = arrival(world, conn, side, size + FRAME_HEADER_BYTES);
    if (at_us == SIM_NEVER) {
        broken_later(world, index);
        return;
    }
    struct sim_event *event = post_to(world, index, !side, SIM_HEADER, at_us);
    event->frame = *frame;
    event->blob = blob ? blob_share(blob) : NULL;
    event->ok = true;
    event = post_to(world, index, side, SIM_SENT, conn->busy_us[side]);
    event->frame = *frame;
    event->serial = serial;
}

/* Frames that waited are looked at again, in their order. */
void conn_recheck(struct world *world, uint32_t index, unsigned side)
{
    struct conn *conn = &world->conns[index];
    uint32_t count = conn->waiting_count[side];
    conn->waiting_count[side] = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct sim_event event = conn->waiting[side][i];
        event.at_us = world->now_us;
        event.order = world->order++;
        push(world, &event);
    }
}

/* Behind a frame that may not be read yet everything of that connection waits. */
static void wait_behind(struct world *world, const struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    unsigned side = event->side;
    if (conn->waiting_count[side] == conn->waiting_room[side]) {
        conn->waiting_room[side] = conn->waiting_room[side] ? 2 * conn->waiting_room[side] : 8;
        conn->waiting[side] =
            realloc(conn->waiting[side], conn->waiting_room[side] * sizeof *conn->waiting[side]);
        if (!conn->waiting[side]) {
            abort();
        }
    }
    conn->waiting[side][conn->waiting_count[side]++] = *event;
}

/* ---- processes ------------------------------------------------------------------------------ */

/* Silent: the machine is gone (power, cable): nobody hears of it. Else its kernel says goodbye. */
void proc_kill(struct world *world, uint32_t proc, bool silent)
{
    world->procs[proc].alive = false;
    world->procs[proc].life++;
    world->procs[proc].stopped_until_us = 0;
    world->procs[proc].tick_at_us = SIM_NEVER;
    for (uint32_t i = 0; i < world->conn_count; i++) {
        struct conn *conn = &world->conns[i];
        for (unsigned side = 0; side < 2; side++) {
            if (!conn->used || conn->proc[side] != proc || !conn->open[side]) {
                continue;
            }
            if (!silent) {
                conn_close(world, i, side);
                continue;
            }
            conn->open[side] = false;
            waiting_free(conn, side);
            conn->last_us[side] = conn->last_us[!side] = SIM_NEVER;
            if (conn->open[!side]) { /* what it sends is never acknowledged */
                post_to(world, i, !side, SIM_DOWN,
                        world->now_us + 15000000u + sim_random(world, 5000000));
            }
            forget(world, i);
        }
    }
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
            wait_behind(world, event);
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
        waiting_free(conn, event->side);
    }
    to_process(world, event);
    if (event->kind == SIM_DOWN || event->kind == SIM_GIVE_UP) {
        forget(world, event->conn);
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
    push(world, event);
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
            waiting_free(&world->conns[i], side);
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
    world->rng.state = seed * 0x9e3779b97f4a7c15u + 1;
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
    world->timeout_us = 60000000;
    choose_model(world);
    choose_network(world);
    faults_plan(world);
}
