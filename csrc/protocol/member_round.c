/* The merge in flight: BEGIN, exchange, DONE, and the master's verdict. */
#include "protocol/member_parts.h"

bool merge_exchanging(const struct member *member)
{
    return member->state == MEMBER_IN_ROUND &&
           (member->round.phase == ROUND_EXCHANGING || member->round.phase == ROUND_DONE);
}

bool merge_applying(const struct member *member)
{
    return member->state == MEMBER_IN_ROUND && member->round.phase == ROUND_APPLYING;
}

void merge_fault(struct member *member, enum fault_kind kind, uint32_t rank, const char *text,
                 struct out *out)
{
    if (member->control != CONTROL_ADMITTED) {
        return; /* the loss of the master has ended the attempt already */
    }
    if (out->msg_count > 0 && out->msgs[out->msg_count - 1].type == FRAME_FAULT) {
        return; /* a list that lacks many of the round's members: one fault ends the attempt */
    }
    struct msg *msg = out_msg(out, FRAME_FAULT);
    struct msg_fault *fault = &msg->as.fault;
    fault->id = member->round.id;
    fault->kind = kind;
    fault->rank = rank;
    text_copy(fault->text, sizeof fault->text, text);
    if (kind == FAULT_STALL) {
        round_owed(&member->round, fault->owed);
    }
}

static void begin_links(struct member *member)
{
    for (uint32_t i = 0; i < member->peer_count; i++) {
        member->peers[i].round_slot = NOBODY;
    }
    for (uint32_t slot = 0; slot < member->round.count; slot++) {
        uint32_t index = member->slot_peers[slot];
        member->round.slot_peers[slot] = index;
        if (index != ROUND_SELF) {
            member->peers[index].round_slot = slot;
            round_link(&member->round, slot, member->peers[index].link == LINK_IS_UP);
        }
    }
}

void merge_begin(struct member *member, const struct msg_begin *begin, struct out *out)
{
    bool fits = member->state == MEMBER_READY && member->ready_sent && member->listed &&
                epoch_compare(begin->id.epoch, member->epoch) == 0 &&
                begin->count == member->listed_count && begin->version == member->held.version;
    if (!fits) {
        struct msg *msg = out_msg(out, FRAME_FAULT);
        msg->as.fault.id = begin->id;
        msg->as.fault.kind = FAULT_LOCAL;
        msg->as.fault.rank = member->config.identity.node_rank;
        text_copy(msg->as.fault.text, sizeof msg->as.fault.text, "it was not ready for this round");
        return;
    }
    round_begin(&member->round, begin, &member->attach.model, member->slot, member->round_memory,
                member->now_us);
    begin_links(member);
    member->attempts++;
    member_set_state(member, MEMBER_IN_ROUND);
    struct action *action = out_add(out, ACTION_ROUND);
    action->flag = epoch_compare(member->residual_epoch, begin->id.epoch) != 0;
    out_add(out, ACTION_RECHECK);
    merge_go_on(member, out);
}

void merge_note(struct member *member, const struct member_event *event)
{
    member->round.progress_us = event->now_us;
    member->round.mean_digest = event->mean_digest;
    member->round.delta_digest = event->delta_digest;
    member->round.sent_bytes = event->sent_bytes;
    member->round.received_bytes = event->received_bytes;
}

static void send_done(struct member *member, struct out *out)
{
    struct round *round = &member->round;
    round->phase = ROUND_DONE;
    round->done_us = member->now_us;
    struct msg *msg = out_msg(out, FRAME_DONE);
    msg->as.done = (struct msg_done){
        .id = round->id,
        .mean_digest = round->mean_digest,
        .delta_digest = round->weights[round->slot] ? round->delta_digest : 0,
        .sent_bytes = round->sent_bytes,
        .received_bytes = round->received_bytes,
        .wait_us = round->began_us - member->submitted_us,
        .exchange_us = round->done_us - round->began_us,
        .apply_us = member->last_apply_us,
    };
}

void merge_go_on(struct member *member, struct out *out)
{
    if (!merge_exchanging(member)) {
        return;
    }
    round_pump(&member->round, out);
    if (member->round.phase == ROUND_EXCHANGING && round_whole(&member->round)) {
        send_done(member, out);
    }
}

static bool of_this_round(const struct member *member, const struct member_event *event)
{
    return merge_exchanging(member) && round_id_equal(event->id, member->round.id);
}

void merge_encoded(struct member *member, const struct member_event *event, struct out *out)
{
    if (!of_this_round(member, event)) {
        return;
    }
    member->round.progress_us = event->now_us;
    if (!event->ok) {
        uint32_t own_rank = member->config.identity.node_rank;
        const char *tensor = event->text ? event->text : "";
        struct event *told = out_event(out, EVENT_NONFINITE);
        told->rank = own_rank;
        told->id = event->id;
        text_copy(told->text, sizeof told->text, tensor);
        merge_fault(member, FAULT_NONFINITE, own_rank, tensor, out);
        return;
    }
    round_encoded(&member->round, event->chunk, out);
    merge_go_on(member, out);
}

void merge_reduced(struct member *member, const struct member_event *event, struct out *out)
{
    if (of_this_round(member, event)) {
        merge_note(member, event);
        round_reduced(&member->round, event->chunk);
        merge_go_on(member, out);
    }
}

/* ---- the verdict -------------------------------------------------------------------------- */

/* The attempt has no effect; round.id stays, so that its late frames are recognised. */
void merge_drop(struct member *member, struct out *out)
{
    member->round.phase = ROUND_IDLE;
    out_add(out, ACTION_DROP_ROUND);
    out_add(out, ACTION_RECHECK);
}

static void on_abort(struct member *member, const struct msg_verdict *verdict, struct out *out)
{
    merge_drop(member, out);
    member_rest(member);
    struct event *event = out_event(out, EVENT_ABORTED);
    event->id = verdict->id;
    event->rank = verdict->rank;
    event->rc = verdict->rc;
    text_copy(event->text, sizeof event->text, verdict->text);
    if (!verdict->again) {
        text_copy(member->text, sizeof member->text, verdict->text);
        member_complete(member, verdict->rc < 0 ? verdict->rc : SOLO_EABORTED, SOLO_MERGED, out);
        member_rest(member);
    }
}

void merge_verdict(struct member *member, enum frame_type type, const struct msg_verdict *verdict,
                   struct out *out)
{
    if (!merge_exchanging(member) || !round_id_equal(verdict->id, member->round.id)) {
        return; /* late: it was dropped here already */
    }
    if (type == FRAME_ABORT) {
        on_abort(member, verdict, out);
        return;
    }
    if (member->round.phase != ROUND_DONE || verdict->mean_digest != member->round.mean_digest) {
        control_reset(member, "the master committed a round that is not whole here", out);
        return;
    }
    if (verdict->text[0]) {
        struct event *event = out_event(out, EVENT_TWINS);
        event->rank = verdict->rank;
        event->id = verdict->id;
        text_copy(event->text, sizeof event->text, verdict->text);
    }
    state_drop_serves(member, out);
    member->round.phase = ROUND_APPLYING;
    member->apply_began_us = member->now_us;
    out_add(out, ACTION_APPLY);
}

void merge_applied(struct member *member, const struct member_event *event, struct out *out)
{
    struct round *round = &member->round;
    if (!merge_applying(member) || !round_id_equal(event->id, round->id)) {
        return;
    }
    round->phase = ROUND_IDLE;
    member->last_apply_us = event->now_us - member->apply_began_us;
    member->held = (struct msg_held){.held = true,
                                     .version = round->id.round,
                                     .digest = event->digest,
                                     .job_step = round->job_step};
    member->committed = round->id;
    member->residual_epoch = round->id.epoch;
    member->job_step = round->job_step;
    if (member->submitted) {
        member_complete(member, 0, round->count == 1 ? SOLO_ALONE : SOLO_MERGED, out);
    }
    member_rest(member);
    state_tell(member, out);
    control_hello(member, out); /* if the master came back meanwhile */
    if (member->over_due) {
        member_over(member, member->over_rc, member->over_text, out);
    }
}

/* ---- time --------------------------------------------------------------------------------- */

void merge_tick(struct member *member, struct out *out)
{
    struct round *round = &member->round;
    if (member->state == MEMBER_IN_ROUND && round->phase == ROUND_EXCHANGING &&
        member->now_us >= round->progress_us + round->stall_us) {
        merge_fault(member, FAULT_STALL, member->config.identity.node_rank,
                    "no chunk came or went within the deadline", out);
        round->progress_us = member->now_us;
    }
}

void merge_wake(const struct member *member, struct out *out)
{
    const struct round *round = &member->round;
    if (member->state == MEMBER_IN_ROUND && round->phase == ROUND_EXCHANGING) {
        out_wake(out, round->progress_us + round->stall_us);
    }
}
