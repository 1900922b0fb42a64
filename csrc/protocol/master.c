#include "protocol/master_parts.h"

/* From -> to. */
#define TO(phase) (1u << MASTER_##phase)
static const uint32_t allowed[] = {
    [MASTER_SETTLING] = TO(SETTLING) | TO(FOUNDING) | TO(BETWEEN) | TO(ENDED),
    [MASTER_FOUNDING] = TO(FOUNDING) | TO(SETTLING) | TO(BETWEEN) | TO(ENDED),
    [MASTER_BETWEEN] = TO(BETWEEN) | TO(EXCHANGING) | TO(SETTLING) | TO(ENDED),
    [MASTER_EXCHANGING] = TO(BETWEEN) | TO(ENDED),
    [MASTER_ENDED] = TO(ENDED),
};

void master_set_phase(struct master *master, enum master_phase phase)
{
    MUST(allowed[master->phase] & 1u << phase);
    master->phase = phase;
    master->phase_us = master->now_us;
}

int master_init(struct master *master, const struct master_config *config, uint64_t now_us)
{
    memset(master, 0, sizeof *master);
    master->config = *config;
    master->config.min_nodes = config->min_nodes ? config->min_nodes : 1;
    master->now_us = master->phase_us = master->idle_us = now_us;
    master->highest.incarnation = config->incarnation;
    master->phase = MASTER_SETTLING;
    master->msg_members.type = FRAME_MEMBERS;
    master->msg_members.table.members = &master->members;
    return 0;
}

/* ---- small things the other files need ----------------------------------------------------- */

struct msg *master_send(struct master_out *out, uint32_t conn, enum frame_type type)
{
    MUST(out->msg_count < MASTER_OUT_MSGS_MAX && out->count < MASTER_OUT_ACTIONS_MAX);
    struct msg *msg = &out->msgs[out->msg_count];
    memset(&msg->as, 0, sizeof msg->as);
    msg->type = type;
    out->actions[out->count++] = (struct master_action){
        .type = MASTER_SEND, .conn = conn, .index = out->msg_count++, .msg = msg};
    return msg;
}

void master_close(struct master_out *out, uint32_t conn)
{
    MUST(out->count < MASTER_OUT_ACTIONS_MAX);
    out->actions[out->count++] = (struct master_action){.type = MASTER_CLOSE, .conn = conn};
}

struct event *master_event_add(struct master_out *out, enum event_kind kind, uint32_t rank)
{
    if (out->event_count == MASTER_OUT_EVENTS_MAX || out->count == MASTER_OUT_ACTIONS_MAX) {
        out->events_dropped++;
        out->event_count -= out->event_count == MASTER_OUT_EVENTS_MAX;
    } else {
        out->actions[out->count++] =
            (struct master_action){.type = MASTER_EVENT, .index = out->event_count};
    }
    struct event *event = event_blank(&out->events[out->event_count++], kind);
    event->rank = rank;
    return event;
}

struct node *master_node_of_conn(struct master *master, uint32_t conn)
{
    EACH_NODE (master, node) {
        if (node->conn == conn) {
            return node;
        }
    }
    return NULL;
}

struct node *master_node_of_rank(struct master *master, uint32_t rank)
{
    EACH_NODE (master, node) {
        if (node->identity.node_rank == rank) {
            return node;
        }
    }
    return NULL;
}

uint64_t master_transfer_us(const struct master *master, uint64_t bytes)
{
    return plan_transfer_us(bytes, 0, master->config.lease_us);
}

void master_end(struct master *master, int rc, const char *text, struct master_out *out)
{
    master->msg_end.type = FRAME_END;
    master->msg_end.as.end.rc = rc;
    text_copy(master->msg_end.as.end.text, sizeof master->msg_end.as.end.text, text);
    EACH_NODE (master, node) {
        node->owed = OWE_END;
    }
    struct event *event = master_event_add(out, EVENT_OVER, EVENT_NOBODY);
    event->rc = rc;
    event->version = master->version;
    text_copy(event->text, sizeof event->text, text);
    master_set_phase(master, MASTER_ENDED);
}

/* ---- what is owed to whom ------------------------------------------------------------------ */

static void send_shared(struct master_out *out, uint32_t conn, const struct msg *msg)
{
    out->actions[out->count++] =
        (struct master_action){.type = MASTER_SEND, .conn = conn, .msg = msg};
}

static void send_doubt(struct node *node, bool commit, struct master_out *out)
{
    struct msg *msg = master_send(out, node->conn, commit ? FRAME_COMMIT : FRAME_ABORT);
    struct msg_verdict *verdict = &msg->as.verdict;
    verdict->id = node->doubt;
    verdict->mean_digest = node->doubt_digest;
    verdict->again = true;
    verdict->rank = EVENT_NOBODY;
    text_copy(verdict->text, sizeof verdict->text, "it was in doubt when the master was lost");
    if (!commit) {
        node->doubt.round = 0; /* answered; a COMMIT is when it tells what it holds */
    }
}

static void send_one(struct master *master, struct node *node, uint32_t what,
                     struct master_out *out)
{
    switch ((enum owed)what) {
    case OWE_ADMIT:
        master->msg_admit.type = FRAME_ADMIT;
        master->msg_admit.as.admit = (struct msg_admit){
            .incarnation = master->highest.incarnation,
            .lease_ms = (uint32_t)(master->config.lease_us / 1000),
            .timeout_ms = (uint32_t)(master->config.timeout_us / 1000),
            .version = master->version,
        };
        send_shared(out, node->conn, &master->msg_admit);
        return;
    case OWE_DOUBT_COMMIT:
    case OWE_DOUBT_ABORT:
        send_doubt(node, what == OWE_DOUBT_COMMIT, out);
        return;
    case OWE_VERDICT:
        send_shared(out, node->conn, &master->msg_verdict);
        return;
    case OWE_MEMBERS:
        send_shared(out, node->conn, &master->msg_members);
        return;
    case OWE_CATCHUP:
        join_order(master, node, &master_send(out, node->conn, FRAME_CATCHUP)->as.catchup);
        return;
    case OWE_SUMMON:
        master_send(out, node->conn, FRAME_SUMMON);
        return;
    case OWE_BEGIN:
        send_shared(out, node->conn, &master->msg_begin);
        return;
    case OWE_END:
        send_shared(out, node->conn, &master->msg_end);
        return;
    }
}

/* Shared messages stay as they are until all who are owed one have it: `draining` holds back
 * every decision meanwhile. */
static void flush(struct master *master, struct master_out *out)
{
    master->draining = false;
    EACH_NODE (master, node) {
        for (uint32_t what = OWE_ADMIT; what <= OWE_END; what <<= 1) {
            if (!(node->owed & what)) {
                continue;
            }
            if (out->count + 4 >= MASTER_OUT_ACTIONS_MAX ||
                out->msg_count + 2 >= MASTER_OUT_MSGS_MAX) {
                master->draining = true;
                return;
            }
            send_one(master, node, what, out);
            node->owed &= ~what;
        }
    }
    if (master->phase == MASTER_ENDED) {
        out->actions[out->count++] =
            (struct master_action){.type = MASTER_OVER, .rc = master->msg_end.as.end.rc};
    }
}

/* ---- time ---------------------------------------------------------------------------------- */

static void drop_silent(struct master *master, struct master_out *out)
{
    EACH_NODE (master, node) {
        if (master->now_us < node->heard_us + master->config.lease_us) {
            continue;
        }
        char why[MSG_TEXT_MAX];
        struct text text = text_of(why, sizeof why);
        text_add(&text, "silent for ");
        text_add_uint(&text, (master->now_us - node->heard_us) / 1000000);
        text_add(&text, " s (its lease)");
        join_drop(master, node, SOLO_ETIMEDOUT, why, out);
        if (out->count + 64 > MASTER_OUT_ACTIONS_MAX || out->msg_count + 8 > MASTER_OUT_MSGS_MAX) {
            return; /* the rest at the next step */
        }
    }
}

/* When a master without nodes gives up. Before the first node came it waits longer: a launcher
 * spends --timeout on reaching the master, then its ranks still have to start. */
static uint64_t idle_until(const struct master *master)
{
    uint64_t start_us = master->had_nodes ? 0 : MASTER_FIRST_NODE_US;
    return master->idle_us + master->config.timeout_us + start_us;
}

static void check_over(struct master *master, struct master_out *out)
{
    if (join_over(master)) {
        master_end(master, 0, "the job is over: its founders have finished", out);
        return;
    }
    uint32_t nodes = 0;
    EACH_NODE (master, node) {
        nodes++;
    }
    if (nodes > 0) {
        master->idle_us = master->now_us;
        master->had_nodes = true;
    } else if (master->now_us >= idle_until(master)) {
        master_end(master, SOLO_ETIMEDOUT, "no node was there for the whole timeout", out);
    }
}

static void decide(struct master *master, struct master_out *out)
{
    drop_silent(master, out);
    check_over(master, out);
    if (master->phase == MASTER_SETTLING || master->phase == MASTER_FOUNDING) {
        settle_step(master, out);
    }
    if (master->phase == MASTER_BETWEEN || master->phase == MASTER_EXCHANGING) {
        rounds_step(master, out);
    }
}

static void wake_at(struct master_out *out, uint64_t at_us)
{
    out->wake_us = at_us < out->wake_us ? at_us : out->wake_us;
}

static void wake(const struct master *master, struct master_out *out)
{
    out->more = master->draining;
    if (master->phase == MASTER_ENDED) {
        return;
    }
    uint64_t heard_us = UINT64_MAX;
    for (uint32_t i = 0; i < master->node_count; i++) {
        if (master->nodes[i].used && master->nodes[i].heard_us < heard_us) {
            heard_us = master->nodes[i].heard_us;
        }
    }
    if (heard_us != UINT64_MAX) {
        wake_at(out, heard_us + master->config.lease_us);
    } else {
        wake_at(out, idle_until(master));
    }
    settle_wake(master, out);
    rounds_wake(master, out);
}

/* ---- one event ----------------------------------------------------------------------------- */

static void on_heartbeat(struct master *master, struct node *node,
                         const struct msg_heartbeat *heartbeat, struct master_out *out)
{
    if (node->chunks != heartbeat->chunks) {
        node->chunks = heartbeat->chunks;
        master->progress_us = master->now_us;
    }
    struct msg *msg = master_send(out, node->conn, FRAME_HEARTBEAT_ACK);
    msg->as.heartbeat = *heartbeat;
}

static void on_leave(struct master *master, struct node *node, const struct msg_leave *leave,
                     struct master_out *out)
{
    master_close(out, node->conn);
    join_gone(master, node, true, leave->finished ? 0 : SOLO_ECLOSED, leave->text, out);
}

static void from_node(struct master *master, struct node *node, const struct msg *msg,
                      struct master_out *out)
{
    node->heard_us = master->now_us;
    if (msg->type == FRAME_READY) {
        rounds_ready(master, node, &msg->as.ready);
    } else if (msg->type == FRAME_DONE) {
        rounds_done(master, node, &msg->as.done, out);
    } else if (msg->type == FRAME_FAULT) {
        verdict_fault(master, node, &msg->as.fault, out);
    } else if (msg->type == FRAME_CAUGHT_UP) {
        join_caught_up(master, node, &msg->as.caught_up, out);
    } else if (msg->type == FRAME_HEARTBEAT) {
        on_heartbeat(master, node, &msg->as.heartbeat, out);
    } else if (msg->type == FRAME_LEAVE) {
        on_leave(master, node, &msg->as.leave, out);
    } else {
        join_drop(master, node, SOLO_EPEER, "it broke the protocol", out);
    }
}

static void on_message(struct master *master, uint32_t conn, const struct msg *msg,
                       struct master_out *out)
{
    struct node *node = master_node_of_conn(master, conn);
    if (msg->type == FRAME_STATUS_ASK) {
        out->actions[out->count++] = (struct master_action){.type = MASTER_STATUS, .conn = conn};
    } else if (node) {
        from_node(master, node, msg, out);
    } else if (msg->type == FRAME_JOIN) {
        join_message(master, conn, &msg->as.join, out);
    } else if (msg->type != FRAME_HEARTBEAT) {
        master_close(out, conn); /* of a node that was dropped meanwhile, or a stranger */
    }
}

static void on_closed(struct master *master, uint32_t conn, const char *why, struct master_out *out)
{
    struct node *node = master_node_of_conn(master, conn);
    char all[MSG_TEXT_MAX];
    struct text text = text_of(all, sizeof all);
    text_add(&text, "killed, crashed or cut off: ");
    text_add(&text, why ? why : "its connection ended");
    if (node) {
        join_gone(master, node, false, SOLO_ECLOSED, all, out);
    }
}

/* After a sleep of our own (a stopped process, a suspended machine) nobody is silent yet: what
 * came meanwhile has not been read. */
static void note_time(struct master *master, uint64_t now_us)
{
    uint64_t gap_us = now_us > master->now_us ? now_us - master->now_us : 0;
    master->now_us = now_us > master->now_us ? now_us : master->now_us;
    if (gap_us > master->config.lease_us / 2) {
        EACH_NODE (master, node) {
            node->heard_us += gap_us;
        }
    }
}

int master_step(struct master *master, const struct master_event *event, struct master_out *out)
{
    out->count = out->msg_count = out->event_count = out->events_dropped = 0;
    out->more = false;
    out->wake_us = UINT64_MAX;
    bool ended = master->phase == MASTER_ENDED;
    note_time(master, event->now_us);
    switch (event->type) {
    case MASTER_ACCEPTED:
    case MASTER_TICK:
        break;
    case MASTER_MESSAGE:
        if (!ended || event->msg->type == FRAME_STATUS_ASK) {
            on_message(master, event->conn, event->msg, out);
        }
        break;
    case MASTER_CLOSED:
        if (!ended) {
            on_closed(master, event->conn, event->text, out);
        }
        break;
    }
    if (!ended && !master->draining) {
        decide(master, out);
    }
    if (!ended || master->draining) {
        flush(master, out);
    }
    wake(master, out);
    return 0;
}

/* ---- status -------------------------------------------------------------------------------- */

static void status_left(const struct master *master, struct msg_status *out)
{
    uint32_t kept = master->left_count < MASTER_LEFT_MAX ? master->left_count : MASTER_LEFT_MAX;
    for (uint32_t i = 0; i < kept && out->count < SOLO_MEMBERS_MAX; i++) {
        const struct master_left *left =
            &master->left[(master->left_count - 1 - i) % MASTER_LEFT_MAX];
        struct msg_status_row *row = &out->rows[out->count++];
        memset(row, 0, sizeof *row);
        row->identity = left->identity;
        row->standing = left->goodbye ? STANDING_LEFT : STANDING_LOST;
        row->version = left->version;
        row->last_seen_ms = (master->now_us - left->at_us) / 1000;
        text_copy(row->left, sizeof row->left, left->why);
    }
}

static void fill_if_empty(char *out, size_t size, const char *text)
{
    if (!out[0]) {
        text_copy(out, size, text);
    }
}

/* What a master that was started alone was not told, the first node to join has told it. */
static void status_arguments(const struct master *master, struct msg_status *out)
{
    struct msg_arguments *told = &out->arguments;
    const struct msg_settings *settings = &master->settings;
    *told = master->config.arguments;
    out->settings_rank = EVENT_NOBODY;
    if (master->settings_known) {
        out->settings_rank = told->interval[0] ? EVENT_NOBODY : master->settings_rank;
        fill_if_empty(told->interval, sizeof told->interval, settings->interval);
        fill_if_empty(told->outer, sizeof told->outer, settings->outer);
        fill_if_empty(told->codec, sizeof told->codec, settings->codec);
        text_copy(told->versions, sizeof told->versions, settings->versions);
    }
}

void master_status(const struct master *master, struct msg_status *out)
{
    memset(out, 0, offsetof(struct msg_status, rows));
    text_copy(out->job_id, sizeof out->job_id, master->config.job_id);
    text_copy(out->solo_version, sizeof out->solo_version, SOLO_VERSION);
    status_arguments(master, out);
    text_copy(out->master_name, sizeof out->master_name, master->config.name);
    text_copy(out->master_address, sizeof out->master_address, master->config.address);
    out->master_pid = master->config.pid;
    out->round = master->phase == MASTER_EXCHANGING ? master->round.round : 0;
    out->version = master->version;
    out->epoch = master->epoch;
    out->min_nodes = master->config.min_nodes;
    out->expected_nodes = master->config.expected_nodes;
    out->member_count = master->listed_count;
    out->over = master->phase == MASTER_ENDED;
    for (uint32_t i = 0; i < master->node_count; i++) {
        const struct node *node = &master->nodes[i];
        if (!node->used) {
            continue;
        }
        struct msg_status_row *row = &out->rows[out->count++];
        memset(row, 0, sizeof *row);
        row->identity = node->identity;
        row->standing = node->standing;
        row->listed = node->listed;
        row->version = node->held.version;
        row->last_seen_ms = (master->now_us - node->heard_us) / 1000;
    }
    status_left(master, out);
}
