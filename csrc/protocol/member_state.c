/* Catching up with the job's anchor, and serving one's own to those who do. */
#include "protocol/member_parts.h"

/* So long without a chunk, and a donor is given up: a few chunks at the slowest rate. */
static uint64_t stall_us(const struct member *member)
{
    uint64_t bytes = plan_bytes(&member->attach.model);
    uint64_t window = (uint64_t)CATCHUP_FETCHES_MAX * PLAN_CHUNK_ELEMENTS_MAX * 8;
    return plan_transfer_us(bytes < window ? bytes : window, member->config.min_rate,
                            member->lease_us);
}

void state_tell(struct member *member, struct out *out)
{
    if (member->control != CONTROL_ADMITTED) {
        return;
    }
    struct msg *msg = out_msg(out, FRAME_CAUGHT_UP);
    msg->as.caught_up = (struct msg_caught_up){.held = member->held.held,
                                               .version = member->held.version,
                                               .digest = member->held.digest,
                                               .job_step = member->held.job_step};
}

static void failed(struct member *member, const char *why, struct out *out)
{
    state_stop(member);
    member_rest(member);
    struct msg *msg = out_msg(out, FRAME_CAUGHT_UP);
    msg->as.caught_up.version = member->order.version;
    text_copy(msg->as.caught_up.text, sizeof msg->as.caught_up.text, why);
}

void state_stop(struct member *member)
{
    member->catchup.active = false;
    member->catchup.adopting = false;
}

static void start(struct member *member, struct out *out)
{
    catchup_begin(&member->catchup, &member->order, &member->attach.model, member->attach.momentum,
                  member->catchup_memory, member->now_us);
    state_go_on(member, out);
}

static void add_donors(struct member *member)
{
    for (uint32_t i = 0; i < member->order.donor_count; i++) {
        uint32_t peer = links_peer_of_rank(member, member->order.donors[i]);
        if (peer != NOBODY) {
            bool up = member->peers[peer].link == LINK_IS_UP;
            catchup_donor(&member->catchup, peer, up);
        }
    }
}

void state_catchup(struct member *member, const struct msg_catchup *order, struct out *out)
{
    if (member->catchup.adopting || merge_applying(member)) {
        return; /* it is told what is held when that is over, and will ask again */
    }
    /* Also when it is to begin with what it holds: that was fetched, over an earlier connection, and
     * is still to become the script's values. */
    bool held = member->held.held && !member->catchup.active &&
                member->held.version == order->version && member->held.digest == order->digest;
    if (held) {
        member->founder = order->founder;
        state_tell(member, out); /* the master had not heard yet that it is here */
        return;
    }
    bool more_donors = member->catchup.active && order->version == member->order.version &&
                       order->digest == member->order.digest && !order->own;
    if (member->state == MEMBER_IN_ROUND) {
        merge_drop(member, out);
    }
    member->order = *order;
    member->founder = order->founder;
    member->ready_sent = false;
    if (member->state != MEMBER_CATCHING_UP) {
        member_set_state(member, MEMBER_CATCHING_UP);
    }
    if (more_donors) {
        state_go_on(member, out);
    } else {
        start(member, out);
    }
}

void state_go_on(struct member *member, struct out *out)
{
    if (!member->catchup.active || member->catchup.adopting) {
        return;
    }
    add_donors(member);
    if (!catchup_pump(&member->catchup, out)) {
        failed(member, "no donor is left", out);
    } else if (member->catchup.adopting) {
        state_drop_serves(member, out);
    }
}

static void wrong_digest(struct member *member, struct out *out)
{
    struct event *event = out_event(out, EVENT_ODD);
    event->rank = member->config.identity.node_rank;
    event->version = member->order.version;
    text_copy(event->text, sizeof event->text,
              "the anchor that was fetched is not the job's: fetched again");
    if (++member->catchup.tries < CATCHUP_TRIES_MAX && !member->order.own) {
        start(member, out);
    } else {
        failed(member, "the anchor's digest is not the job's", out);
    }
}

void state_adopted(struct member *member, uint64_t digest, struct out *out)
{
    if (!member->catchup.active || !member->catchup.adopting) {
        return;
    }
    const struct msg_catchup *order = &member->order;
    bool right = order->digest == 0 || digest == order->digest;
    /* What ADOPT has put in place is held: nothing else is left. */
    member->held = (struct msg_held){
        .held = right, .version = order->version, .digest = digest, .job_step = order->job_step};
    memset(&member->committed, 0, sizeof member->committed);
    memset(&member->residual_epoch, 0, sizeof member->residual_epoch);
    member->attach.held.held = member->attach.held.held && order->own;
    member->rejoined = member->joined;
    member->catchup.adopting = false;
    if (!right && member->control == CONTROL_ADMITTED) {
        wrong_digest(member, out);
        return;
    }
    if (right) {
        struct event *event = out_event(out, member->joined ? EVENT_REJOINED : EVENT_CAUGHT_UP);
        event->rank = member->config.identity.node_rank;
        event->version = order->version;
        event->us = member->now_us - member->catchup.began_us;
    }
    state_stop(member);
    member_rest(member);
    if (right) {
        state_tell(member, out);
        control_listed(member, out); /* the list may have come while this was fetched once more */
    }
    control_hello(member, out);
}

/* ---- the donor's side --------------------------------------------------------------------- */

static bool holds(const struct member *member, uint64_t version)
{
    return member->held.held && member->held.version == version && !merge_applying(member) &&
           !member->catchup.adopting;
}

static bool exists(const struct member *member, const struct frame *frame)
{
    struct plan plan;
    bool momentum = frame->flags & FRAME_MOMENTUM;
    return plan_init_state(&plan, &member->attach.model) == 0 &&
           frame->chunk < (momentum ? plan.first_chunk[SOLO_MEAN] : plan.chunk_count) &&
           (!momentum || member->attach.momentum);
}

void state_fetch(struct member *member, uint32_t index, const struct frame *frame, struct out *out)
{
    struct peer *peer = &member->peers[index];
    bool serve = member->attached && holds(member, frame->round) && exists(member, frame) &&
                 peer->serves < CATCHUP_SERVES_MAX;
    struct action *action =
        out_add_peer(out, serve ? ACTION_SERVE : ACTION_NO_STATE, index, frame->chunk);
    action->kind = frame->flags & FRAME_MOMENTUM ? STATE_MOMENTUM : STATE_ANCHOR;
    action->version = frame->round;
    peer->serves += serve;
}

void state_drop_serves(struct member *member, struct out *out)
{
    uint32_t serves = 0;
    for (uint32_t i = 0; i < member->peer_count; i++) {
        serves += member->peers[i].serves;
        member->peers[i].serves = 0;
    }
    if (serves > 0) {
        out_add(out, ACTION_DROP_SERVES);
    }
}

/* ---- time --------------------------------------------------------------------------------- */

void state_tick(struct member *member, struct out *out)
{
    struct catchup *catchup = &member->catchup;
    if (catchup->active && !catchup->adopting &&
        member->now_us >= catchup->progress_us + stall_us(member)) {
        catchup->progress_us = member->now_us;
        struct event *event = out_event(out, EVENT_DONOR_LOST);
        text_copy(event->text, sizeof event->text, "no chunk came within the deadline");
        catchup_silent(catchup);
        state_go_on(member, out);
    }
}

void state_wake(const struct member *member, struct out *out)
{
    if (member->catchup.active && !member->catchup.adopting) {
        out_wake(out, member->catchup.progress_us + stall_us(member));
    }
}
