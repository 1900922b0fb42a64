/* A node: what node/drive.c does on sockets, done on the simulated network. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_node.h"

/* ---- actions -------------------------------------------------------------------------------- */

static void dial_peer(struct world *world, struct sim_node *node, uint32_t peer)
{
    const struct peer *to = &node->member->peers[peer];
    uint32_t index = conn_dial(world, node->proc, (uint32_t)atoi(to->address), false);
    if (node->links[peer] != NO_CONN) {
        sim_fail(world, "n%u connects to a peer it has a link to", node->rank);
    }
    node->links[peer] = index;
    world->conns[index].peer[0] = peer;
    world->conns[index].maker = node->instance;
    world->conns[index].wanted = to->instance;
}

static void close_peer(struct world *world, struct sim_node *node, uint32_t peer)
{
    uint32_t index = node->links[peer];
    node->links[peer] = NO_CONN;
    if (index != NO_CONN) {
        conn_close(world, index, world->conns[index].proc[1] == node->proc);
    }
}

static void recheck(struct world *world, struct sim_node *node)
{
    for (uint32_t i = 0; i < node->member->peer_count; i++) {
        uint32_t index = node->links[i];
        if (index != NO_CONN) {
            conn_recheck(world, index, world->conns[index].proc[1] == node->proc);
        }
    }
}

static void trace_event(struct world *world, const char *who, uint32_t rank,
                        const struct event *event)
{
    sim_trace(world, "%s%u event %s rank %d members %u round %llu.%u version %llu: %s", who, rank,
              event_kind_name(event->kind), (int)event->rank, event->member_count,
              (unsigned long long)event->id.round, event->id.attempt,
              (unsigned long long)event->version, event->text);
}

static void act(struct world *world, struct sim_node *node, const struct action *action)
{
    struct out *out = world->out;
    switch (action->type) {
    case ACTION_CONNECT_MASTER:
        node->control = conn_dial(world, node->proc, SIM_MASTER, true);
        return;
    case ACTION_CLOSE_MASTER:
        if (node->control != NO_CONN) {
            conn_close(world, node->control, 0);
            node->control = NO_CONN;
        }
        return;
    case ACTION_SEND_MASTER:
        sim_trace(world, "n%u -> m %s", node->rank, frame_name(out->msgs[action->index].type));
        if (node->control == NO_CONN) {
            sim_fail(world, "n%u sends to a master it has no connection to", node->rank);
            return;
        }
        conn_send(world, node->control, 0, &out->msgs[action->index]);
        return;
    case ACTION_CONNECT:
        dial_peer(world, node, action->peer);
        return;
    case ACTION_CLOSE:
        close_peer(world, node, action->peer);
        return;
    case ACTION_ROUND:
        check_round(world, node, action->flag);
        work_round(world, node);
        return;
    case ACTION_ENCODE:
        work_encode(world, node, action->chunk);
        return;
    case ACTION_SEND_DELTA:
    case ACTION_SEND_MEAN:
        work_send_chunk(world, node, action);
        return;
    case ACTION_REDUCE:
        work_reduce(world, node, action->chunk);
        return;
    case ACTION_APPLY:
        work_apply(world, node);
        return;
    case ACTION_DROP_ROUND:
        work_drop(world, node);
        return;
    case ACTION_FETCH:
    case ACTION_SERVE:
    case ACTION_NO_STATE:
        work_send_state(world, node, action);
        return;
    case ACTION_DROP_SERVES:
        node->serve_serial++;
        return;
    case ACTION_ADOPT:
        work_adopt(world, node, action);
        return;
    case ACTION_RECHECK:
        recheck(world, node);
        return;
    case ACTION_JOINED:
        script_joined(world, node);
        return;
    case ACTION_COMPLETE:
        script_complete(world, node);
        return;
    case ACTION_DUE:
        script_due(world, node, action->flag);
        return;
    case ACTION_OVER:
        script_over(world, node, action->rc);
        return;
    case ACTION_EVENT:
        check_event(world, &out->events[action->index]);
        trace_event(world, "n", node->rank, &out->events[action->index]);
        return;
    }
}

void node_feed(struct world *world, struct sim_node *node, struct member_event *event)
{
    event->now_us = sim_clock(world, node->proc);
    event->mean_digest = node->mean_digest;
    event->delta_digest = node->instance;
    int rc = member_step(node->member, event, world->out);
    if (rc < 0) {
        sim_fail(world, "n%u: a step failed: %s", node->rank, solo_error_text());
    }
    world->steps++;
    for (uint32_t i = 0; i < world->out->count && !world->failure[0]; i++) {
        act(world, node, &world->out->actions[i]);
    }
    sim_timer(world, node->proc, world->out->wake_us);
}

/* ---- what arrives --------------------------------------------------------------------------- */

static void on_accept(struct world *world, struct sim_node *node, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    const struct sim_node *maker = &world->nodes[conn->proc[0]];
    int peer = node->over || conn->wanted != node->instance
                   ? -1
                   : member_peer_of(node->member, maker->rank, conn->maker);
    if (peer < 0) {
        conn_close(world, event->conn, 1);
        return;
    }
    struct member_event down = {.type = MEMBER_LINK_DOWN, .peer = (uint32_t)peer};
    if (node->links[peer] != NO_CONN) {
        close_peer(world, node, (uint32_t)peer);
        node_feed(world, node, &down);
    }
    conn = &world->conns[event->conn];
    if (node->links[peer] != NO_CONN) {
        conn_close(world, event->conn, 1); /* it is connecting itself by now */
        return;
    }
    conn->peer[1] = (uint32_t)peer;
    node->links[peer] = event->conn;
    struct sim_event *up = sim_post(world, SIM_UP, conn->proc[0], world->delay_us);
    up->life = conn->life[0];
    up->conn = event->conn;
    up->conn_serial = conn->serial;
    up->side = 0;
    struct member_event link = {.type = MEMBER_LINK_UP, .peer = (uint32_t)peer};
    node_feed(world, node, &link);
}

static void on_up(struct world *world, struct sim_node *node, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    conn->made = true;
    struct member_event up = {.type = conn->control ? MEMBER_MASTER_UP : MEMBER_LINK_UP,
                              .peer = conn->peer[0]};
    node_feed(world, node, &up);
}

static void on_down(struct world *world, struct sim_node *node, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    struct member_event down = {.rc = SOLO_ECLOSED, .text = "the connection ended"};
    if (conn->control) {
        if (node->control != event->conn) {
            return;
        }
        node->control = NO_CONN;
        down.type = MEMBER_MASTER_DOWN;
    } else {
        uint32_t peer = conn->peer[event->side];
        if (node->links[peer] != event->conn) {
            return;
        }
        node->links[peer] = NO_CONN;
        down.type = MEMBER_LINK_DOWN;
        down.peer = peer;
    }
    node_feed(world, node, &down);
}

/* Promise 1: what is later is known by its epoch, so of the lists that a node is in none goes back. */
static void check_list(struct world *world, const struct sim_node *node,
                       const struct msg_members *members)
{
    for (uint32_t i = 0; i < members->listed_count; i++) {
        if (members->rows[i].identity.instance == node->instance &&
            epoch_compare(members->epoch, node->member->epoch) < 0) {
            sim_fail(world, "promise 1: n%u is listed in an epoch before the one it was in",
                     node->rank);
        }
    }
}

static void on_message(struct world *world, struct sim_node *node, struct sim_event *event)
{
    static struct msg msg;
    static struct msg_members members;
    msg.table.members = &members;
    if (msg_decode(event->frame.type, event->blob->cells, event->blob->size, &msg) < 0) {
        sim_fail(world, "n%u cannot read a %s message", node->rank, frame_name(event->frame.type));
        return;
    }
    sim_trace(world, "n%u <- m %s", node->rank, frame_name(msg.type));
    if (msg.type == FRAME_ABORT) {
        check_heard_abort(world, node, &msg.as.verdict);
    } else if (msg.type == FRAME_MEMBERS) {
        check_list(world, node, &members);
    }
    struct member_event message = {.type = MEMBER_MESSAGE, .msg = &msg};
    node_feed(world, node, &message);
}

/* The header of a data frame: is it taken? Its payload comes a little later. */
bool node_header(struct world *world, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    struct sim_node *node = &world->nodes[event->proc];
    uint32_t peer = conn->peer[event->side];
    enum round_take take = TAKE_HERE;
    if (event->frame.type != FRAME_FETCH && event->frame.type != FRAME_NO_STATE) {
        take = member_take(node->member, peer, &event->frame);
    }
    if (take == TAKE_LATER) {
        return false;
    }
    if (take == TAKE_FAULT && event->ok) {
        sim_fail(world, "n%u calls a %s of chunk %u by an honest peer a fault", node->rank,
                 frame_name(event->frame.type), event->frame.chunk);
    }
    if (take != TAKE_HERE) {
        return true;
    }
    if (node->twice_next && event->blob && event->ok) {
        node->twice_next = false;
        struct sim_event again = *event;
        again.at_us = world->now_us + sim_random(world, 100);
        again.order = world->order++;
        again.ok = false; /* not from an honest peer */
        again.blob = blob_share(event->blob);
        sim_push(world, &again);
    }
    struct sim_event *payload = sim_post(world, SIM_PAYLOAD, event->proc, sim_random(world, 200));
    payload->life = event->life;
    payload->conn = event->conn;
    payload->conn_serial = event->conn_serial;
    payload->side = event->side;
    payload->frame = event->frame;
    payload->blob = event->blob ? blob_share(event->blob) : NULL;
    payload->serial = node->round_serial;
    payload->ok = !node->flip_next || !event->blob;
    node->flip_next = node->flip_next && payload->ok;
    return true;
}

/* A payload that memory or a card changed after its checksum was looked at. */
static void change_unseen(struct sim_node *node, uint64_t *cells, uint32_t count)
{
    if (node->unseen_next && count > 0) {
        cells[0] ^= 1u << 7;
        node->unseen_next = false;
        node->unseen = true;
    }
}

static void store(struct world *world, struct sim_node *node, uint32_t peer,
                  const struct sim_event *event)
{
    const struct round *round = &node->member->round;
    const struct frame *frame = &event->frame;
    if (frame->type == FRAME_STATE) {
        struct plan plan;
        plan_init_state(&plan, &world->model);
        struct span span = work_span(world, &plan, frame->chunk);
        uint64_t *into = frame->flags & FRAME_MOMENTUM ? node->staged_momentum : node->staged;
        memcpy(into + span.first, event->blob->cells, span.count * sizeof *into);
        change_unseen(node, into + span.first, span.count);
        return;
    }
    struct span span = work_span(world, &round->plan, frame->chunk);
    if (frame->type == FRAME_MEAN) {
        memcpy(node->mean + span.first, event->blob->cells, span.count * sizeof *node->mean);
        change_unseen(node, node->mean + span.first, span.count);
        node->mean_digest += cells_digest(node->mean + span.first, span.count, frame->chunk);
        return;
    }
    uint32_t slot = node->member->peers[peer].round_slot;
    node->parked[(frame->chunk - round->shard.first) * round->count + slot] =
        blob_share(event->blob);
    if (++node->parked_now > round->plan.window * (round->count - 1)) {
        sim_fail(world, "n%u parks more than %u chunks", node->rank,
                 round->plan.window * (round->count - 1));
    }
}

static void on_payload(struct world *world, struct sim_node *node, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    uint32_t peer = conn->peer[event->side];
    bool data = event->frame.type == FRAME_DELTA || event->frame.type == FRAME_MEAN;
    if (data && event->serial != node->round_serial) {
        return; /* diverted by DROP_ROUND */
    }
    bool takes = event->frame.type == FRAME_FETCH || event->frame.type == FRAME_NO_STATE ||
                 member_take(node->member, peer, &event->frame) == TAKE_HERE;
    if (takes && event->ok && event->blob) {
        store(world, node, peer, event);
    }
    struct member_event received = {
        .type = MEMBER_RECEIVED, .peer = peer, .frame = &event->frame, .ok = event->ok};
    node_feed(world, node, &received);
}

static void on_sent(struct world *world, struct sim_node *node, struct sim_event *event)
{
    bool state = event->frame.type == FRAME_STATE;
    bool late = event->serial != (state ? node->serve_serial : node->round_serial);
    if (late && state) {
        return;
    }
    node->encoding -= event->frame.type == FRAME_DELTA && !late; /* a late one counts nowhere */
    struct conn *conn = &world->conns[event->conn];
    struct member_event sent = {
        .type = MEMBER_SENT, .peer = conn->peer[event->side], .frame = &event->frame};
    node_feed(world, node, &sent);
}

static void on_work(struct world *world, struct sim_node *node, struct sim_event *event)
{
    struct member_event work = {.id = event->id, .chunk = event->chunk, .ok = event->ok};
    if (event->kind == SIM_ENCODED) {
        work.type = MEMBER_ENCODED;
        work.text = "layers.0.weight";
    } else if (event->kind == SIM_REDUCED) {
        work.type = MEMBER_REDUCED;
    } else {
        work.type = event->kind == SIM_APPLIED ? MEMBER_APPLIED : MEMBER_ADOPTED;
        work.digest = node_digest(world, node);
    }
    node_feed(world, node, &work);
    if (event->kind == SIM_APPLIED && node->member->held.held) {
        work_save(world, node);
    }
}

void node_event(struct world *world, struct sim_event *event)
{
    struct sim_node *node = &world->nodes[event->proc];
    struct member_event tick = {.type = MEMBER_TICK};
    switch (event->kind) {
    case SIM_TICK:
        node_feed(world, node, &tick);
        return;
    case SIM_ACCEPT:
        on_accept(world, node, event);
        return;
    case SIM_UP:
        on_up(world, node, event);
        return;
    case SIM_GIVE_UP:
    case SIM_DOWN:
        on_down(world, node, event);
        return;
    case SIM_MESSAGE:
        on_message(world, node, event);
        return;
    case SIM_PAYLOAD:
        on_payload(world, node, event);
        return;
    case SIM_SENT:
        on_sent(world, node, event);
        return;
    case SIM_ENCODED:
    case SIM_REDUCED:
    case SIM_APPLIED:
    case SIM_ADOPTED:
        on_work(world, node, event);
        return;
    case SIM_SCRIPT:
        if (event->serial == node->script_serial) {
            script_turn(world, node);
        }
        return;
    case SIM_HEADER:
    case SIM_FAULT:
    case SIM_START:
        return;
    }
}
