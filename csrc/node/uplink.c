/* The connection to the master: one TCP connection of small messages, never behind data. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/engine.h"

static void on_open(void *context, struct conn *conn)
{
    struct solo *solo = context;
    (void)conn;
    struct member_event event = drive_event(solo, MEMBER_MASTER_UP);
    drive_feed(solo, &event);
}

static int on_frame(void *context, struct conn *conn, const struct frame *frame,
                    const void *payload)
{
    struct solo *solo = context;
    (void)conn;
    struct msg msg = {.table.members = &solo->table};
    TRY(msg_decode(frame->type, payload, frame->size, &msg));
    log_line(SOLO_LOG_DEBUG, "solo: from master: %s", frame_name(frame->type));
    struct member_event event = drive_event(solo, MEMBER_MESSAGE);
    event.msg = &msg;
    drive_feed(solo, &event);
    return 0;
}

static void on_lost(void *context, struct conn *conn, int rc, const char *text)
{
    struct solo *solo = context;
    /* A port where nobody listens yet is no refusal by a master: that would be for good. */
    bool nobody = conn_reach(conn) == SOLO_CONN_REFUSED;
    char copy[MSG_REASON_MAX]; /* the text may be the connection's */
    snprintf(copy, sizeof copy, "%s", text);
    solo->control = NULL;
    conn_free(conn);
    struct member_event event = drive_event(solo, MEMBER_MASTER_DOWN);
    event.rc = nobody ? SOLO_ECLOSED : rc;
    event.text = copy;
    drive_feed(solo, &event);
}

static const struct conn_calls calls = {.open = on_open, .frame = on_frame, .lost = on_lost};

/* An action may not feed the machine: the news comes with the next turn. */
static void down_later(struct solo *solo, int rc)
{
    snprintf(solo->control_text, sizeof solo->control_text, "%s", err_text());
    struct work work = {.kind = WORK_MASTER_DOWN, .rc = rc, .generation = solo->control_generation};
    work_add(solo, &work);
}

void uplink_connect(struct solo *solo)
{
    const struct settings *settings = &solo->settings;
    struct conn_config config = {
        .loop = solo->loop,
        .job_id = settings->job_id,
        .token = settings->token,
        .insecure = settings->insecure,
        .roles = 1u << HELLO_CONTROL,
        .hello_us = ENGINE_HELLO_US,
        .calls = &calls,
        .context = solo,
    };
    conn_free(solo->control);
    solo->control = NULL;
    solo->control_generation++;
    int rc = conn_dial(&config, &settings->master, &solo->control);
    if (rc < 0) {
        down_later(solo, rc);
    }
}

void uplink_send(struct solo *solo, const struct msg *msg)
{
    if (!solo->control) {
        return;
    }
    int size = msg_encode(msg, solo->payload, sizeof solo->payload);
    MUST(size >= 0);
    struct frame frame = {.type = msg->type};
    int rc = conn_send_copy(solo->control, &frame, solo->payload, (size_t)size);
    if (rc < 0 && rc != SOLO_ECLOSED) { /* a master that does not read any more */
        conn_free(solo->control);
        solo->control = NULL;
        down_later(solo, rc);
    }
}

/* ---- the goodbye --------------------------------------------------------------------------- */

static int ignore_frame(void *context, struct conn *conn, const struct frame *frame,
                        const void *payload)
{
    (void)context;
    (void)conn;
    (void)frame;
    (void)payload;
    return 0;
}

static void on_left(void *context, struct conn *conn, int rc, const char *text)
{
    struct solo *solo = context;
    (void)rc;
    (void)text;
    conn_free(conn);
    solo->control_leaving = NULL;
    if (solo->leaving) {
        call_finish(solo->leaving, 0, NULL);
        solo->leaving = NULL;
    }
}

static const struct conn_calls leaving_calls = {.frame = ignore_frame, .lost = on_left};

void uplink_close(struct solo *solo)
{
    solo->control_generation++;
    if (!solo->control) {
        return;
    }
    conn_free(solo->control_leaving);
    solo->control_leaving = solo->control;
    solo->control = NULL;
    conn_adopt(solo->control_leaving, &leaving_calls, solo);
    conn_finish(solo->control_leaving, loop_now(solo->loop) + ENGINE_LEAVE_US / 2);
}

void uplink_free(struct solo *solo)
{
    conn_free(solo->control);
    conn_free(solo->control_leaving);
    solo->control = solo->control_leaving = NULL;
}
