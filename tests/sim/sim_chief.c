/* The master's process: what node/service.c does on sockets, done on the simulated network. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

static void feed(struct world *world, struct master_event *event);

void chief_start(struct world *world)
{
    struct proc *proc = &world->procs[SIM_MASTER];
    proc->alive = true;
    struct master_config config = {
        .incarnation = 1000 + sim_random(world, 2000000), /* clocks may go back */
        .min_nodes = world->min_nodes,
        .timeout_us = world->timeout_us,
        .lease_us = world->lease_us,
        .first_us = world->first_us,
        .linger = world->linger,
    };
    snprintf(config.job_id, sizeof config.job_id, "sim");
    sim_trace(world, "m starts, life %u", proc->life);
    world->settling = true;
    world->settling_us = world->now_us;
    master_init(world->master, &config, sim_clock(world, SIM_MASTER));
    struct master_event tick = {.type = MASTER_TICK};
    feed(world, &tick);
}

/* The same table goes to many: it is encoded once for all that get it in one step. */
static void send_members(struct world *world, uint32_t conn, const struct msg *msg,
                         struct blob **shared)
{
    static uint8_t bytes[FRAME_TABLE_MAX];
    if (!*shared) {
        int size = msg_encode(msg, bytes, sizeof bytes);
        if (size < 0) {
            sim_fail(world, "MEMBERS does not fit");
            return;
        }
        *shared = blob_new((uint32_t)size);
        memcpy((*shared)->cells, bytes, (size_t)size);
    }
    conn_send_blob(world, conn, 1, *shared, msg->type);
}

static void check_sent(struct world *world, const struct msg *msg)
{
    if (msg->type == FRAME_BEGIN) {
        check_begin(world, &msg->as.begin);
    } else if (msg->type == FRAME_COMMIT || msg->type == FRAME_ABORT) {
        check_verdict(world, msg->type, &msg->as.verdict);
    } else if (msg->type == FRAME_MEMBERS) {
        check_members(world, msg->table.members);
    }
}

static void over(struct world *world, int rc)
{
    sim_trace(world, "m OVER rc %d", rc);
    world->over = true;
    check_over(world);
    struct proc *proc = &world->procs[SIM_MASTER];
    for (uint32_t i = 0; i < world->conn_count; i++) {
        struct conn *conn = &world->conns[i];
        if (conn->used && conn->control && conn->life[1] == proc->life) {
            conn_close(world, i, 1);
        }
    }
    proc->alive = false;
    proc->life++;
}

static void on_event(struct world *world, const struct event *event)
{
    sim_trace(world, "m event %s rank %d members %u round %llu.%u version %llu: %s",
              event_kind_name(event->kind), (int)event->rank, event->member_count,
              (unsigned long long)event->id.round, event->id.attempt,
              (unsigned long long)event->version, event->text);
    check_event(world, event);
    world->aborts += event->kind == EVENT_ABORTED;
    world->commits += event->kind == EVENT_COMMITTED;
    if (event->kind == EVENT_SETTLED || event->kind == EVENT_STATE_LOST) {
        check_settled(world, event);
    }
}

/* It dies between two of those whom it tells a verdict. */
static void die_telling(struct world *world, enum frame_type type)
{
    if ((type != FRAME_COMMIT && type != FRAME_ABORT) || world->dies_after == 0 ||
        --world->dies_after > 0 || world->now_us >= world->calm_us) {
        return;
    }
    sim_trace(world, "FAULT master dies in the middle of a %s", frame_name(type));
    proc_kill(world, SIM_MASTER, false);
    sim_post(world, SIM_START, SIM_MASTER, world->dies_for_us);
}

static void act(struct world *world, const struct master_action *action, struct blob **members)
{
    switch (action->type) {
    case MASTER_SEND:
        check_sent(world, action->msg);
        sim_trace(world, "m -> n%u %s", world->conns[action->conn].proc[0] - 1,
                  frame_name(action->msg->type));
        if (action->msg->type == FRAME_MEMBERS) {
            send_members(world, action->conn, action->msg, members);
        } else {
            conn_send(world, action->conn, 1, action->msg);
        }
        die_telling(world, action->msg->type);
        return;
    case MASTER_CLOSE:
        conn_close(world, action->conn, 1);
        return;
    case MASTER_STATUS:
        return;
    case MASTER_EVENT:
        on_event(world, &world->master_out->events[action->index]);
        return;
    case MASTER_OVER:
        over(world, action->rc);
        return;
    }
}

/* The phase may be over again in the same step, so its beginning is taken from the machine. */
static void note_settling(struct world *world)
{
    bool settling = world->master->phase == MASTER_SETTLING;
    if (settling && !world->settling) {
        world->settling_us = world->now_us;
    }
    world->settling = settling;
}

static void feed(struct world *world, struct master_event *event)
{
    struct master_out *out = world->master_out;
    do {
        event->now_us = sim_clock(world, SIM_MASTER);
        master_step(world->master, event, out);
        world->steps++;
        note_settling(world);
        struct blob *members = NULL;
        struct proc *proc = &world->procs[SIM_MASTER];
        for (uint32_t i = 0; i < out->count && proc->alive && !world->failure[0]; i++) {
            act(world, &out->actions[i], &members);
        }
        blob_drop(members);
        event->type = MASTER_TICK;
    } while (out->more && world->procs[SIM_MASTER].alive);
    if (world->procs[SIM_MASTER].alive) {
        sim_timer(world, SIM_MASTER, out->wake_us);
    }
}

static void on_accept(struct world *world, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    struct sim_event *up = sim_post(world, SIM_UP, conn->proc[0], world->delay_us);
    up->life = conn->life[0];
    up->conn = event->conn;
    up->conn_serial = conn->serial;
    up->side = 0;
    struct master_event accepted = {.type = MASTER_ACCEPTED, .conn = event->conn};
    feed(world, &accepted);
}

static void on_message(struct world *world, struct sim_event *event)
{
    static struct msg msg;
    if (msg_decode(event->frame.type, event->blob->cells, event->blob->size, &msg) < 0) {
        sim_fail(world, "the master cannot read a %s message", frame_name(event->frame.type));
        return;
    }
    struct master_event message = {.type = MASTER_MESSAGE, .conn = event->conn, .msg = &msg};
    feed(world, &message);
}

void chief_event(struct world *world, struct sim_event *event)
{
    struct master_event other = {.type = MASTER_TICK};
    if (event->kind == SIM_ACCEPT) {
        on_accept(world, event);
    } else if (event->kind == SIM_MESSAGE) {
        on_message(world, event);
    } else if (event->kind == SIM_DOWN) {
        other = (struct master_event){
            .type = MASTER_CLOSED, .conn = event->conn, .text = "its connection ended"};
        feed(world, &other);
    } else if (event->kind == SIM_TICK) {
        feed(world, &other);
    }
}
