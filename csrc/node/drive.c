/* Decisions meet the world here: an event to the member's machine, its actions to whoever does
 * them, one call each. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/engine.h"

struct member_event drive_event(struct solo *solo, enum member_event_type type)
{
    return (struct member_event){
        .type = type,
        .now_us = loop_now(solo->loop),
        .ok = true,
        .mean_digest = solo->has_job ? solo->job.mean_digest : 0,
        .delta_digest = solo->has_job ? solo->job.delta_digest : 0,
        .sent_bytes = solo->sent_bytes,
        .received_bytes = solo->received_bytes,
    };
}

static void add_work(struct solo *solo, const struct action *action)
{
    bool own = action->type == ACTION_ENCODE && job_owns(&solo->job, action->chunk);
    enum work_kind kind = own                             ? WORK_OWN
                          : action->type == ACTION_ENCODE ? WORK_ENCODE
                          : action->type == ACTION_REDUCE ? WORK_REDUCE
                          : action->type == ACTION_APPLY  ? WORK_APPLY
                                                          : WORK_ADOPT;
    struct work work = {
        .kind = kind, .id = solo->member.round.id, .chunk = action->chunk, .own = action->flag};
    work_add(solo, &work);
}

static void send_master(struct solo *solo, const struct msg *msg)
{
    log_line(SOLO_LOG_DEBUG, "solo: to master: %s", frame_name(msg->type));
    uplink_send(solo, msg);
}

static void set_due(struct solo *solo, bool due)
{
    atomic_store_explicit(&solo->shared.due, due, memory_order_relaxed);
}

static void finish(struct solo *solo, const struct action *action)
{
    if (action->type == ACTION_JOINED) {
        attach_finish(solo, &solo->out.result);
    } else {
        merge_finish(solo, &solo->out.result);
    }
}

static void do_action(struct solo *solo, const struct action *action)
{
    switch (action->type) {
    case ACTION_CONNECT_MASTER:
        uplink_connect(solo);
        break;
    case ACTION_CLOSE_MASTER:
        uplink_close(solo);
        break;
    case ACTION_SEND_MASTER:
        send_master(solo, &solo->out.msgs[action->index]);
        break;
    case ACTION_CONNECT:
        peer_connect(solo, action->peer);
        break;
    case ACTION_CLOSE:
        peer_close(solo, action->peer);
        break;
    case ACTION_ROUND:
        work_round(solo, action->flag);
        break;
    case ACTION_ENCODE:
    case ACTION_REDUCE:
    case ACTION_APPLY:
    case ACTION_ADOPT:
        add_work(solo, action);
        break;
    case ACTION_SEND_DELTA:
    case ACTION_SEND_MEAN:
        peer_send_chunk(solo, action);
        break;
    case ACTION_FETCH:
    case ACTION_SERVE:
    case ACTION_NO_STATE:
        peer_send_state(solo, action);
        break;
    case ACTION_DROP_ROUND:
        work_drop_round(solo);
        break;
    case ACTION_DROP_SERVES:
        work_drop_serves(solo);
        break;
    case ACTION_RECHECK:
        peer_resume_all(solo);
        break;
    case ACTION_JOINED:
    case ACTION_COMPLETE:
        finish(solo, action);
        break;
    case ACTION_DUE:
        set_due(solo, action->flag);
        break;
    case ACTION_OVER:
        engine_over(solo, action->rc);
        break;
    case ACTION_EVENT:
        report_event(solo, &solo->out.events[action->index]);
        break;
    }
}

int drive_feed(struct solo *solo, struct member_event *event)
{
    if (solo->ended) {
        return 0;
    }
    MUST(!solo->stepping);
    solo->stepping = true;
    out_clear(&solo->out);
    int rc = member_step(&solo->member, event, &solo->out);
    if (rc < 0) {
        log_line(SOLO_LOG_WARN, "solo: event %d was not allowed: %s", (int)event->type, err_text());
    }
    report_state(solo); /* whoever is woken by an action sees the state that woke it */
    for (uint32_t i = 0; i < solo->out.count && !solo->ended; i++) {
        do_action(solo, &solo->out.actions[i]);
    }
    solo->stepping = false;
    if (solo->ended || solo->out.wake_us == UINT64_MAX) {
        loop_timer_cancel(solo->loop, &solo->tick);
    } else {
        loop_timer_set(solo->loop, &solo->tick, solo->out.wake_us);
    }
    report_state(solo);
    return rc;
}
