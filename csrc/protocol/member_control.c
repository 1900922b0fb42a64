/* The connection to the master: made, kept alive, made again with growing, jittered pauses. */
#include "protocol/member_parts.h"

void control_connect(struct member *member, struct out *out)
{
    member->control = CONTROL_CONNECTING;
    out_add(out, ACTION_CONNECT_MASTER);
}

static void identify(const struct member *member, struct msg_join *join)
{
    text_copy(join->job_id, sizeof join->job_id, member->config.job_id);
    join->identity = member->config.identity;
    join->settings = member->attach.settings;
    join->held = member->held.held ? member->held : member->attach.held;
    join->returning = member->joined;
    join->founder = member->founder;
    join->pending = member->submitted;
    join->committed = member->committed;
    /* Also before it was in a list itself: a master that was started again hears from it that there
     * is a job, and whose return to wait for, and does not begin another with its values. */
    join->epoch = member->epoch;
    join->epoch_count = member->listed_count;
    memcpy(join->epoch_ranks, member->slot_ranks, member->listed_count * sizeof(uint32_t));
    if (member->joined && member->state == MEMBER_IN_ROUND && member->round.phase == ROUND_DONE) {
        join->doubt = member->round.id;
        join->doubt_digest = member->round.mean_digest;
    }
}

/* An anchor that is being applied or adopted is told when it is whole. */
void control_hello(struct member *member, struct out *out)
{
    if (member->control != CONTROL_UP || !member->attached || merge_applying(member) ||
        member->catchup.adopting) {
        return;
    }
    struct msg *msg = out_msg(out, FRAME_JOIN);
    identify(member, &msg->as.join);
    member->control = CONTROL_JOINED;
    member->heard_us = member->now_us;
}

void control_up(struct member *member, struct out *out)
{
    if (member->control != CONTROL_CONNECTING) {
        return;
    }
    member->control = CONTROL_UP;
    member->heard_us = member->beat_us = member->now_us;
    control_hello(member, out);
}

/* What is lost with the connection: our place in the list until the master says otherwise. An
 * attempt without our DONE cannot be committed, so it is dropped; one with it stays in doubt. */
static void disconnected(struct member *member, enum event_kind kind, const char *why,
                         struct out *out)
{
    bool was_admitted = member->control == CONTROL_ADMITTED;
    member->control = CONTROL_WAITING;
    member->ready_sent = false;
    member->listed = false;
    if (was_admitted && member->joined && !member->control_lost) {
        member->control_lost = true;
        member->lost_us = member->now_us;
        struct event *event = out_event(out, kind);
        text_copy(event->text, sizeof event->text, why);
    }
    if (member->state == MEMBER_IN_ROUND && member->round.phase == ROUND_EXCHANGING) {
        merge_drop(member, out);
        member_rest(member);
    }
    if (member->catchup.active && !member->catchup.adopting) {
        state_stop(member);
        member_rest(member);
    }
    member->control_retry_us =
        member->now_us + member_backoff_us(member, member->control_failures++);
}

void control_down(struct member *member, int rc, const char *text, struct out *out)
{
    if (member->control == CONTROL_WAITING) {
        return;
    }
    disconnected(member, EVENT_MASTER_LOST, text, out);
    bool fatal = rc == SOLO_EAUTH || rc == SOLO_EVERSION || rc == SOLO_EREFUSED;
    if (fatal && !member->joined) {
        member_over(member, rc, text, out);
    }
}

static void reset(struct member *member, enum event_kind kind, const char *why, struct out *out)
{
    if (member->control != CONTROL_WAITING) {
        out_add(out, ACTION_CLOSE_MASTER);
        disconnected(member, kind, why, out);
    }
}

void control_reset(struct member *member, const char *why, struct out *out)
{
    reset(member, EVENT_MASTER_LOST, why, out);
}

/* ---- messages ----------------------------------------------------------------------------- */

static void on_admit(struct member *member, const struct msg_admit *admit, struct out *out)
{
    member->control = CONTROL_ADMITTED;
    member->control_failures = 0;
    if (admit->lease_ms > 0) {
        member->lease_us = (uint64_t)admit->lease_ms * 1000;
    }
    member->beat_us = member->now_us;
    if (member->control_lost) {
        member->control_lost = false;
        struct event *event = out_event(out, EVENT_MASTER_FOUND);
        event->us = member->now_us - member->lost_us;
    }
}

static void on_refuse(struct member *member, const struct msg_refuse *refuse, struct out *out)
{
    reset(member, EVENT_DROPPED, refuse->text, out);
    if (refuse->retry_ms == 0) {
        member_over(member, refuse->rc < 0 ? refuse->rc : SOLO_EREFUSED, refuse->text, out);
        return;
    }
    uint64_t pause = (uint64_t)refuse->retry_ms * 1000;
    member->control_retry_us = member->now_us + pause + member_backoff_us(member, 0);
}

void control_ready(struct member *member, struct out *out)
{
    if (member->state != MEMBER_READY || !member->listed || member->ready_sent ||
        member->control != CONTROL_ADMITTED) {
        return;
    }
    struct msg *msg = out_msg(out, FRAME_READY);
    msg->as.ready = member->ready;
    msg->as.ready.version = member->held.version;
    msg->as.ready.digest = member->held.digest;
    member->ready_sent = true;
}

void control_listed(struct member *member, struct out *out)
{
    if (!member->listed) {
        return;
    }
    if (!member->joined && member->state == MEMBER_OUTSIDE && member->held.held) {
        member_joined(member, out);
    } else if (member->state == MEMBER_TRAINING && member->rejoined && member->submitted) {
        member_complete(member, 0, SOLO_REJOINED, out);
    }
    control_ready(member, out);
}

static void on_members(struct member *member, const struct msg_members *members, struct out *out)
{
    links_members(member, members, out);
    member->ready_sent = member->ready_sent && member->listed;
    control_listed(member, out);
}

static void on_end(struct member *member, const struct msg_end *end, struct out *out)
{
    out_add(out, ACTION_CLOSE_MASTER);
    member->control = CONTROL_WAITING;
    const char *text = end->text[0] ? end->text : "the job is over: its founders have finished";
    struct event *event = out_event(out, EVENT_OVER);
    event->rc = end->rc;
    text_copy(event->text, sizeof event->text, text);
    member_over(member, !member->joined && end->rc == 0 ? SOLO_EOVER : end->rc, text, out);
}

static void on_ack(struct member *member, const struct msg_heartbeat *ack)
{
    uint64_t rtt = member->now_us - ack->sent_us;
    if (ack->sent_us <= member->now_us && rtt < UINT32_MAX) {
        member->rtt_us = (uint32_t)rtt;
    }
}

static void on_summon(struct member *member, struct out *out)
{
    if (member->joined && !member->submitted) {
        struct action *due = out_add(out, ACTION_DUE);
        due->flag = true;
    }
}

void control_message(struct member *member, const struct msg *msg, struct out *out)
{
    if (member->control != CONTROL_JOINED && member->control != CONTROL_ADMITTED) {
        return;
    }
    member->heard_us = member->now_us;
    if (msg->type != FRAME_ADMIT && msg->type != FRAME_REFUSE && msg->type != FRAME_END &&
        member->control != CONTROL_ADMITTED) {
        control_reset(member, "the master broke the protocol", out);
        return;
    }
    if (msg->type == FRAME_ADMIT) {
        on_admit(member, &msg->as.admit, out);
    } else if (msg->type == FRAME_REFUSE) {
        on_refuse(member, &msg->as.refuse, out);
    } else if (msg->type == FRAME_MEMBERS) {
        on_members(member, msg->table.members, out);
    } else if (msg->type == FRAME_BEGIN) {
        merge_begin(member, &msg->as.begin, out);
    } else if (msg->type == FRAME_COMMIT || msg->type == FRAME_ABORT) {
        merge_verdict(member, msg->type, &msg->as.verdict, out);
    } else if (msg->type == FRAME_SUMMON) {
        on_summon(member, out);
    } else if (msg->type == FRAME_HEARTBEAT_ACK) {
        on_ack(member, &msg->as.heartbeat);
    } else if (msg->type == FRAME_CATCHUP) {
        state_catchup(member, &msg->as.catchup, out);
    } else if (msg->type == FRAME_END) {
        on_end(member, &msg->as.end, out);
    } /* others are not for members */
}

/* ---- time --------------------------------------------------------------------------------- */

static void beat(struct member *member, struct out *out)
{
    struct msg *msg = out_msg(out, FRAME_HEARTBEAT);
    msg->as.heartbeat.sent_us = member->now_us;
    msg->as.heartbeat.rtt_us = member->rtt_us;
    msg->as.heartbeat.chunks = member->state == MEMBER_IN_ROUND ? member->round.mean_count : 0;
    member->beat_us = member->now_us;
}

void control_tick(struct member *member, uint64_t gap_us, struct out *out)
{
    switch (member->control) {
    case CONTROL_WAITING:
        if (member->now_us >= member->control_retry_us) {
            control_connect(member, out);
        }
        return;
    case CONTROL_CONNECTING:
    case CONTROL_UP:
        return;
    case CONTROL_JOINED:
    case CONTROL_ADMITTED:
        break;
    }
    if (gap_us > member->lease_us / 2) {
        member->heard_us += gap_us; /* we were asleep: what came meanwhile is not read yet */
    }
    if (member->now_us >= member->heard_us + member->lease_us) {
        control_reset(member, "the master is silent", out);
    } else if (member->control == CONTROL_ADMITTED &&
               member->now_us >= member->beat_us + member->lease_us / MEMBER_BEATS_PER_LEASE) {
        beat(member, out);
    }
}

void control_wake(const struct member *member, struct out *out)
{
    switch (member->control) {
    case CONTROL_WAITING:
        out_wake(out, member->control_retry_us);
        return;
    case CONTROL_CONNECTING:
    case CONTROL_UP:
        return;
    case CONTROL_ADMITTED:
        out_wake(out, member->beat_us + member->lease_us / MEMBER_BEATS_PER_LEASE);
        out_wake(out, member->heard_us + member->lease_us);
        return;
    case CONTROL_JOINED:
        out_wake(out, member->heard_us + member->lease_us);
        return;
    }
}
