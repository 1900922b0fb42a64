/* A node: what node/drive.c does on sockets, done on the simulated network; and its script. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define NO_CONN   UINT32_MAX
#define NO_SERIAL UINT32_MAX

static void feed(struct world *world, struct sim_node *node, struct member_event *event);

/* ---- numbers -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    struct rng rng = {a ^ (b * 0x9e3779b97f4a7c15u)};
    return rng_next(&rng);
}

uint64_t cells_digest(const uint64_t *cells, uint32_t count, uint64_t index)
{
    uint64_t digest = mix(index, count);
    for (uint32_t i = 0; i < count; i++) {
        digest = mix(digest, cells[i]);
    }
    return digest;
}

uint64_t node_digest(const struct world *world, const struct sim_node *node)
{
    uint64_t digest = cells_digest(node->anchor, world->cells, 1);
    digest += world->momentum ? cells_digest(node->momentum, world->momentum_cells, 2) : 0;
    return digest ? digest : 1;
}

struct span {
    uint32_t first, count; /* cells */
};

static struct span span_of(const struct world *world, const struct plan *plan, uint32_t chunk)
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

static uint64_t *cells_new(const struct world *world)
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

/* ---- life ----------------------------------------------------------------------------------- */

static void parked_free(struct sim_node *node)
{
    for (uint32_t i = 0; i < node->parked_count; i++) {
        blob_drop(node->parked[i]);
    }
    free(node->parked);
    node->parked = NULL;
    node->parked_count = node->parked_now = 0;
}

void node_free(struct sim_node *node)
{
    parked_free(node);
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
    node->instance = mix(world->seed, (uint64_t)proc << 32 | world->procs[proc].life);
    node->control = NO_CONN;
    memset(node->links, 0xff, sizeof node->links);
    node->attached = node->joined = node->waiting = node->final = node->over = false;
    node->steps_done = node->steps_at_anchor = node->committed_steps = 0;
    node->encoding = 0;
    node->nan = node->flip_next = node->memory_next = node->unseen_next = false;
    node->version = UINT64_MAX;
    for (uint32_t i = 0; i < world->cells; i++) {
        node->local[i] = mix(node->instance, i); /* its own random start */
    }
    struct member_config config = {
        .identity = {.node_rank = node->rank, .device_count = 1, .instance = node->instance},
        .seed = node->instance,
        .timeout_us = world->timeout_us,
        .lease_us = world->lease_us};
    snprintf(config.job_id, sizeof config.job_id, "sim");
    snprintf(config.identity.name, sizeof config.identity.name, "node%u", node->rank);
    snprintf(config.identity.address, sizeof config.identity.address, "%u", proc);
    snprintf(config.identity.host_id, sizeof config.identity.host_id, "host%u:%u", proc,
             world->procs[proc].life);
    member_init(node->member, &config);
    sim_trace(world, "n%u starts, life %u", node->rank, world->procs[proc].life);
    struct member_event start = {.type = MEMBER_START};
    feed(world, node, &start);
    sim_post(world, SIM_SCRIPT, proc, 50000 + sim_random(world, 3000000))->serial =
        ++node->script_serial;
}

void node_kill(struct world *world, uint32_t proc)
{
    struct sim_node *node = &world->nodes[proc];
    parked_free(node);
    node->joined = node->waiting = false;
    node->script_serial++;
    node->round_serial++;
    node->serve_serial++;
}

/* ---- sending -------------------------------------------------------------------------------- */

static void send_chunk(struct world *world, struct sim_node *node, const struct action *action)
{
    const struct round *round = &node->member->round;
    struct span span = span_of(world, &round->plan, action->chunk);
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

static void send_state(struct world *world, struct sim_node *node, const struct action *action)
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
        struct span span = span_of(world, &plan, action->chunk);
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

static void do_round(struct world *world, struct sim_node *node)
{
    const struct round *round = &node->member->round;
    parked_free(node);
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

static void do_encode(struct world *world, struct sim_node *node, uint32_t chunk)
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

static void do_reduce(struct world *world, struct sim_node *node, uint32_t chunk)
{
    const struct round *round = &node->member->round;
    struct span span = span_of(world, &round->plan, chunk);
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

static void do_apply(struct world *world, struct sim_node *node)
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
    parked_free(node);
    node->round_serial++;
    node->version = node->member->round.id.round;
    later(world, node, SIM_APPLIED, 3000);
}

static void do_drop(struct world *world, struct sim_node *node)
{
    parked_free(node);
    node->round_serial++;
    (void)world;
}

/* ---- the state ------------------------------------------------------------------------------ */

static void do_adopt(struct world *world, struct sim_node *node, const struct action *action)
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
    later(world, node, SIM_ADOPTED, 2000);
}

static void save(struct world *world, struct sim_node *node)
{
    if (node->file_used) {
        memcpy(node->file_anchor, node->anchor, world->cells * sizeof(uint64_t));
        memcpy(node->file_momentum, node->momentum, world->cells * sizeof(uint64_t));
        node->file = node->member->held;
        node->file_held = true;
    }
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
}

static void do_joined(struct world *world, struct sim_node *node)
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

static void do_complete(struct world *world, struct sim_node *node)
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

static void do_due(struct world *world, struct sim_node *node, bool due)
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

static void do_over(struct world *world, struct sim_node *node, int rc)
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
        do_round(world, node);
        return;
    case ACTION_ENCODE:
        do_encode(world, node, action->chunk);
        return;
    case ACTION_SEND_DELTA:
    case ACTION_SEND_MEAN:
        send_chunk(world, node, action);
        return;
    case ACTION_REDUCE:
        do_reduce(world, node, action->chunk);
        return;
    case ACTION_APPLY:
        do_apply(world, node);
        return;
    case ACTION_DROP_ROUND:
        do_drop(world, node);
        return;
    case ACTION_FETCH:
    case ACTION_SERVE:
    case ACTION_NO_STATE:
        send_state(world, node, action);
        return;
    case ACTION_DROP_SERVES:
        node->serve_serial++;
        return;
    case ACTION_ADOPT:
        do_adopt(world, node, action);
        return;
    case ACTION_RECHECK:
        recheck(world, node);
        return;
    case ACTION_JOINED:
        do_joined(world, node);
        return;
    case ACTION_COMPLETE:
        do_complete(world, node);
        return;
    case ACTION_DUE:
        do_due(world, node, action->flag);
        return;
    case ACTION_OVER:
        do_over(world, node, action->rc);
        return;
    case ACTION_EVENT:
        trace_event(world, "n", node->rank, &out->events[action->index]);
        return;
    }
}

static void feed(struct world *world, struct sim_node *node, struct member_event *event)
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
    feed(world, node, &event);
}

static void submit(struct world *world, struct sim_node *node)
{
    uint64_t steps = (world->now_us - node->turn_us) / node->step_us;
    steps = steps < node->interval ? steps : node->interval;
    for (uint32_t i = 0; i < world->cells; i++) {
        node->local[i] += mix(node->instance + node->steps_done, steps * 1000003 + i);
    }
    node->steps_done += steps;
    node->waiting = true;
    node->wait_since_us = world->now_us;
    uint64_t since = node->steps_done - node->steps_at_anchor;
    struct member_event event = {.type = MEMBER_SUBMIT,
                                 .submit = {.samples = since * 4,
                                            .steps = since,
                                            .lr_sum = 0.1 * (double)since,
                                            .final = node->steps_done >= node->steps_total}};
    sim_trace(world, "n%u SUBMIT steps %llu of %llu", node->rank,
              (unsigned long long)node->steps_done, (unsigned long long)node->steps_total);
    feed(world, node, &event);
}

static void script(struct world *world, struct sim_node *node)
{
    if (!node->attached) {
        attach(world, node);
    } else if (node->final) {
        struct member_event event = {.type = MEMBER_LEAVE,
                                     .ok = node->steps_done >= node->steps_total,
                                     .text = "its script ended"};
        feed(world, node, &event);
    } else if (node->joined && !node->waiting) {
        submit(world, node);
    }
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
        feed(world, node, &down);
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
    feed(world, node, &link);
}

static void on_up(struct world *world, struct sim_node *node, struct sim_event *event)
{
    struct conn *conn = &world->conns[event->conn];
    conn->made = true;
    struct member_event up = {.type = conn->control ? MEMBER_MASTER_UP : MEMBER_LINK_UP,
                              .peer = conn->peer[0]};
    feed(world, node, &up);
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
    feed(world, node, &down);
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
    struct member_event message = {.type = MEMBER_MESSAGE, .msg = &msg};
    feed(world, node, &message);
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
    if (take == TAKE_FAULT) {
        sim_fail(world, "n%u calls a %s of chunk %u by an honest peer a fault", node->rank,
                 frame_name(event->frame.type), event->frame.chunk);
    }
    if (take != TAKE_HERE) {
        return true;
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
        struct span span = span_of(world, &plan, frame->chunk);
        uint64_t *into = frame->flags & FRAME_MOMENTUM ? node->staged_momentum : node->staged;
        memcpy(into + span.first, event->blob->cells, span.count * sizeof *into);
        change_unseen(node, into + span.first, span.count);
        return;
    }
    struct span span = span_of(world, &round->plan, frame->chunk);
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
    if (!takes) {
        return;
    }
    if (event->ok && event->blob) {
        store(world, node, peer, event);
    }
    struct member_event received = {
        .type = MEMBER_RECEIVED, .peer = peer, .frame = &event->frame, .ok = event->ok};
    feed(world, node, &received);
}

static void on_sent(struct world *world, struct sim_node *node, struct sim_event *event)
{
    bool state = event->frame.type == FRAME_STATE;
    if (event->serial != (state ? node->serve_serial : node->round_serial)) {
        return;
    }
    node->encoding -= event->frame.type == FRAME_DELTA;
    struct conn *conn = &world->conns[event->conn];
    struct member_event sent = {
        .type = MEMBER_SENT, .peer = conn->peer[event->side], .frame = &event->frame};
    feed(world, node, &sent);
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
    feed(world, node, &work);
    if (event->kind == SIM_APPLIED && node->member->held.held) {
        save(world, node);
    }
}

void node_event(struct world *world, struct sim_event *event)
{
    struct sim_node *node = &world->nodes[event->proc];
    struct member_event tick = {.type = MEMBER_TICK};
    switch (event->kind) {
    case SIM_TICK:
        feed(world, node, &tick);
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
            script(world, node);
        }
        return;
    case SIM_HEADER:
    case SIM_FAULT:
    case SIM_START:
        return;
    }
}
