/* The network: connections with delay and order, partitions, what a death looks like. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define CONNECT_DEADLINE_US 5000000u
#define BROKEN_AFTER_US     6000000u /* of silence in one direction (TCP_USER_TIMEOUT) */

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
    return sim_push(world, &event);
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

void conn_waiting_free(struct conn *conn, unsigned side)
{
    for (uint32_t i = 0; i < conn->waiting_count[side]; i++) {
        blob_drop(conn->waiting[side][i].blob);
    }
    conn->waiting_count[side] = 0;
}

/* Both sides have ended it: the slot may be used again, under another serial. */
void conn_forget(struct world *world, uint32_t index)
{
    struct conn *conn = &world->conns[index];
    if (conn->used && !conn->open[0] && !conn->open[1]) {
        conn_waiting_free(conn, 0);
        conn_waiting_free(conn, 1);
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
    conn_waiting_free(conn, side);
    if (conn->open[!side] && conn->last_us[!side] != SIM_NEVER) {
        uint64_t at_us = arrival(world, conn, side, 0);
        if (at_us == SIM_NEVER) {
            at_us = world->now_us + BROKEN_AFTER_US;
        }
        post_to(world, index, !side, SIM_DOWN, at_us);
    }
    conn_forget(world, index);
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
        conn_waiting_free(conn, side);
        if (conn->open[side]) {
            post_to(world, index, side, SIM_DOWN, world->now_us + sim_random(world, 2000000));
        }
    }
    conn_forget(world, index);
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
        sim_push(world, &event);
    }
}

/* Behind a frame that may not be read yet everything of that connection waits. */
void conn_wait(struct world *world, const struct sim_event *event)
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
            conn_waiting_free(conn, side);
            conn->last_us[side] = conn->last_us[!side] = SIM_NEVER;
            if (conn->open[!side]) { /* what it sends is never acknowledged */
                post_to(world, i, !side, SIM_DOWN,
                        world->now_us + 15000000u + sim_random(world, 5000000));
            }
            conn_forget(world, i);
        }
    }
}
