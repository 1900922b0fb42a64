/* Asking a master who is there, without joining: one connection, on the caller's thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "os/conn.h"
#include "wire/msg.h"

struct asking {
    struct conn *conn;
    struct msg_status answer;
    uint64_t asked_us, answered_us, answered_wall_us;
    bool done;
    int rc;
    enum solo_reach reach;
    char text[SOLO_TEXT_MAX];
};

static void on_open(void *context, struct conn *conn)
{
    struct asking *asking = context;
    struct frame frame = {.type = FRAME_STATUS_ASK};
    asking->asked_us = clock_us();
    (void)conn_send_copy(conn, &frame, NULL, 0); /* the first frame always fits */
}

static int on_frame(void *context, struct conn *conn, const struct frame *frame,
                    const void *payload)
{
    struct asking *asking = context;
    (void)conn;
    if (frame->type != FRAME_STATUS) {
        return err_set(SOLO_EPEER, "it answers with %s", frame_name(frame->type));
    }
    struct msg msg = {.table.status = &asking->answer};
    TRY(msg_decode(frame->type, payload, frame->size, &msg));
    asking->answered_us = clock_us();
    asking->answered_wall_us = clock_wall_us();
    asking->reach = SOLO_REACHED;
    asking->done = true;
    return 0;
}

static void on_lost(void *context, struct conn *conn, int rc, const char *text)
{
    struct asking *asking = context;
    if (asking->done) {
        return;
    }
    asking->done = true;
    asking->rc = rc < 0 ? rc : SOLO_ECLOSED;
    asking->reach = conn_reach(conn) == SOLO_REACHED ? SOLO_NO_ANSWER : conn_reach(conn);
    snprintf(asking->text, sizeof asking->text, "%s", text ? text : "");
}

static const struct conn_calls calls = {.open = on_open, .frame = on_frame, .lost = on_lost};

static void fill(const struct asking *asking, struct solo_status *out)
{
    const struct msg_status *from = &asking->answer;
    out->rtt_us = (uint32_t)(asking->answered_us - asking->asked_us);
    out->wire_version = SOLO_WIRE_VERSION;
    snprintf(out->solo_version, sizeof out->solo_version, "%s", from->solo_version);
    snprintf(out->job_id, sizeof out->job_id, "%s", from->job_id);
    snprintf(out->versions, sizeof out->versions, "%s", from->arguments.versions);
    snprintf(out->interval, sizeof out->interval, "%s", from->arguments.interval);
    snprintf(out->outer, sizeof out->outer, "%s", from->arguments.outer);
    snprintf(out->codec, sizeof out->codec, "%s", from->arguments.codec);
    snprintf(out->master_name, sizeof out->master_name, "%s", from->master_name);
    snprintf(out->master_address, sizeof out->master_address, "%s", from->master_address);
    out->master_pid = from->master_pid;
    out->settings_rank = from->settings_rank;
    out->ahead_us = (int64_t)(from->wall_us - asking->answered_wall_us + out->rtt_us / 2);
    out->incarnation = from->epoch.incarnation;
    out->epoch = from->epoch.counter;
    out->round = from->round;
    out->version = from->version;
    out->min_nodes = from->min_nodes;
    out->expected_nodes = from->expected_nodes;
    out->member_count = from->member_count;
    out->over = from->over;
    out->listed = from->count;
    uint32_t slot = 0;
    for (uint32_t i = 0; i < from->count; i++) {
        const struct msg_status_row *row = &from->rows[i];
        struct solo_status_member *member = &out->members[i];
        member->node_rank = row->identity.node_rank;
        member->device_count = row->identity.device_count;
        member->live = row->standing != STANDING_LEFT && row->standing != STANDING_LOST;
        member->slot = row->listed && member->live ? slot++ : UINT32_MAX;
        member->version = row->version;
        member->last_seen_ms = row->last_seen_ms;
        snprintf(member->name, sizeof member->name, "%s", row->identity.name);
        snprintf(member->address, sizeof member->address, "%s", row->identity.address);
        snprintf(member->state, sizeof member->state, "%s", standing_name(row->standing));
        snprintf(member->left, sizeof member->left, "%s", row->left);
    }
}

/* Into the caller's struct, of which it may know less than we. */
static void give(const struct asking *asking, bool answered, struct solo_status *out)
{
    static const struct solo_status none;
    struct solo_status *filled = malloc(sizeof *filled);
    out->reach = asking->reach;
    if (!filled) {
        return;
    }
    *filled = none;
    if (answered) {
        fill(asking, filled);
    }
    filled->size = out->size;
    filled->reach = asking->reach;
    memcpy(out, filled, out->size);
    free(filled);
}

static int ask(struct asking *asking, struct loop *loop, const struct conn_config *config,
               const struct solo_url *url, uint64_t deadline_us)
{
    TRY(conn_dial(config, url, &asking->conn));
    while (!asking->done && clock_us() < deadline_us) {
        TRY(loop_turn(loop, deadline_us));
    }
    if (!asking->done) {
        enum solo_reach reach = conn_reach(asking->conn);
        asking->reach = reach == SOLO_REACHED ? SOLO_NO_ANSWER : reach;
        return err_set(SOLO_ETIMEDOUT, "the master at %s:%u does not answer", url->host, url->port);
    }
    return asking->rc < 0 ? err_set(asking->rc, "%s", asking->text) : 0;
}

int solo_status_get(const char *url_text, const char *job_id, const char *token,
                    uint32_t timeout_ms, struct solo_status *out)
{
    size_t size = out->size && out->size < sizeof *out ? out->size : sizeof *out;
    memset(out, 0, size);
    out->size = size;
    out->reach = SOLO_NO_ANSWER;
    struct solo_url url;
    TRY(solo_url_parse(url_text, &url));
    struct asking *asking = calloc(1, sizeof *asking);
    struct loop *loop = NULL;
    if (!asking || loop_new(&loop) < 0) {
        free(asking);
        return err_set(SOLO_ENOMEM, "no memory or descriptor to ask for a status");
    }
    asking->reach = SOLO_NO_ANSWER;
    struct conn_config config = {
        .loop = loop,
        .job_id = job_id ? job_id : "", /* whichever job is there */
        .token = token && token[0] ? token : NULL,
        .insecure = true, /* nothing secret is asked or told; the master decides */
        .roles = 1u << HELLO_STATUS,
        .hello_us = (uint64_t)timeout_ms * 1000,
        .calls = &calls,
        .context = asking,
    };
    int rc = ask(asking, loop, &config, &url, clock_us() + (uint64_t)timeout_ms * 1000);
    conn_free(asking->conn);
    give(asking, rc >= 0, out);
    loop_free(loop);
    free(asking);
    return rc;
}
