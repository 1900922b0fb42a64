#include "protocol/member_parts.h"

/* From -> to. What is not here cannot happen. */
#define TO(state) (1u << MEMBER_##state)
static const uint32_t allowed[] = {
    [MEMBER_OFF] = TO(OUTSIDE) | TO(ENDED),
    [MEMBER_OUTSIDE] = TO(OUTSIDE) | TO(CATCHING_UP) | TO(TRAINING) | TO(ENDED),
    [MEMBER_CATCHING_UP] = TO(CATCHING_UP) | TO(OUTSIDE) | TO(TRAINING) | TO(READY) | TO(ENDED),
    [MEMBER_TRAINING] = TO(TRAINING) | TO(READY) | TO(CATCHING_UP) | TO(ENDED),
    [MEMBER_READY] = TO(READY) | TO(IN_ROUND) | TO(TRAINING) | TO(CATCHING_UP) | TO(ENDED),
    [MEMBER_IN_ROUND] = TO(READY) | TO(TRAINING) | TO(CATCHING_UP) | TO(ENDED),
    [MEMBER_ENDED] = TO(ENDED),
};

void member_set_state(struct member *member, enum member_state state)
{
    MUST(allowed[member->state] & 1u << state);
    member->state = state;
}

void member_rest(struct member *member)
{
    if (!member->joined) {
        member_set_state(member, MEMBER_OUTSIDE);
    } else if (member->submitted && !member->rejoined) {
        member_set_state(member, MEMBER_READY);
    } else {
        member_set_state(member, MEMBER_TRAINING);
    }
}

uint64_t member_memory_bytes(const struct plan_model *model)
{
    return round_memory_bytes(model) + 8 + catchup_memory_bytes(model);
}

void member_init(struct member *member, const struct member_config *config)
{
    memset(member, 0, sizeof *member);
    member->config = *config;
    member->rng.state = config->seed;
    member->lease_us = config->lease_us;
    member->slot = NOBODY;
    member->links_wake_us = UINT64_MAX;
}

/* ---- results ------------------------------------------------------------------------------ */

static void fill(struct member *member, int rc, struct member_result *result)
{
    *result = (struct member_result){
        .rc = rc,
        .version = member->held.version,
        .digest = member->held.digest,
        .job_step = member->held.job_step,
        .slot = member->slot,
        .member_count = member->listed_count,
        .founder = member->founder,
    };
    if (rc < 0) {
        err_set(rc, "%s", member->text);
    }
}

void member_joined(struct member *member, struct out *out)
{
    out_add(out, ACTION_JOINED);
    fill(member, 0, &out->result);
    out->result.replaced = !member->order.own || member->attach.held.held;
    member->joined = true;
    member->rejoined = false;
    member_rest(member);
}

void member_complete(struct member *member, int rc, enum solo_outcome outcome, struct out *out)
{
    out_add(out, ACTION_COMPLETE);
    struct member_result *result = &out->result;
    fill(member, rc, result);
    result->outcome = outcome;
    result->attempts = member->attempts;
    if (rc == 0 && outcome != SOLO_REJOINED) {
        const struct round *round = &member->round;
        result->round = round->id.round;
        result->member_count = round->count;
        result->contributor_count = round->contributors;
        result->wait_us = round->began_us - member->submitted_us;
        result->exchange_us = round->done_us - round->began_us;
        result->apply_us = member->last_apply_us;
    }
    member->submitted = false;
    member->ready_sent = false;
    member->attempts = 0;
    if (rc == 0) {
        member->rejoined = false;
    }
}

void member_over(struct member *member, int rc, const char *text, struct out *out)
{
    if (member->state == MEMBER_ENDED) {
        return;
    }
    if (merge_applying(member)) { /* half of the script's values are new: to the end with it */
        member->over_due = true;
        member->over_rc = rc;
        text_copy(member->over_text, sizeof member->over_text, text);
        member->control = CONTROL_WAITING;
        member->control_retry_us = UINT64_MAX;
        return;
    }
    text_copy(member->text, sizeof member->text, text);
    if (merge_exchanging(member)) {
        merge_drop(member, out);
    }
    state_stop(member);
    state_drop_serves(member, out);
    if (member->attached && !member->joined) {
        out_add(out, ACTION_JOINED);
        fill(member, rc < 0 ? rc : SOLO_ECLOSED, &out->result);
    } else if (member->submitted) {
        member_complete(member, rc < 0 ? rc : SOLO_EOVER, SOLO_MERGED, out);
    }
    links_close(member, out);
    member_set_state(member, MEMBER_ENDED);
    struct action *action = out_add(out, ACTION_OVER);
    action->rc = rc;
}

/* ---- the script --------------------------------------------------------------------------- */

static int on_attach(struct member *member, const struct member_event *event, struct out *out)
{
    if (member->attached || member->state == MEMBER_OFF) {
        return err_set(SOLO_EINVAL, "the model is attached once, after the start");
    }
    struct plan plan;
    TRY(plan_init(&plan, &event->attach->model, SOLO_MEMBERS_MAX, PLAN_MESH));
    member->attach = *event->attach;
    member->round_memory = event->attach->memory;
    member->catchup_memory =
        (uint8_t *)event->attach->memory + round_memory_bytes(&member->attach.model);
    member->attached = true;
    member->attach_us = event->now_us;
    control_hello(member, out);
    return 0;
}

static int on_submit(struct member *member, const struct member_event *event, struct out *out)
{
    if (!member->joined || member->submitted || member->state == MEMBER_ENDED) {
        return err_set(SOLO_EINVAL, "a merge is submitted by a node that has joined, one at a "
                                    "time");
    }
    member->ready = (struct msg_ready){.weight = event->submit.samples,
                                       .steps = event->submit.steps,
                                       .lr_sum = event->submit.lr_sum,
                                       .final = event->submit.final};
    member->submitted = true;
    member->submitted_us = event->now_us;
    member->attempts = 0;
    struct action *due = out_add(out, ACTION_DUE);
    due->flag = false;
    if (member->state == MEMBER_TRAINING && !member->rejoined) {
        member_set_state(member, MEMBER_READY);
        control_ready(member, out);
    } else if (member->state == MEMBER_TRAINING && member->listed) {
        member_complete(member, 0, SOLO_REJOINED, out);
    } /* else: it is being caught up, or waits to be let in again */
    return 0;
}

static int on_leave(struct member *member, const struct member_event *event, struct out *out)
{
    if (member->control == CONTROL_ADMITTED) {
        struct msg *msg = out_msg(out, FRAME_LEAVE);
        msg->as.leave.finished = event->ok;
        text_copy(msg->as.leave.text, sizeof msg->as.leave.text, event->text);
    }
    if (member->submitted && !merge_applying(member)) {
        text_copy(member->text, sizeof member->text, "this node has left the job");
        if (merge_exchanging(member)) {
            merge_drop(member, out);
        }
        member_complete(member, SOLO_ECLOSED, SOLO_MERGED, out);
    }
    out_add(out, ACTION_CLOSE_MASTER);
    member_over(member, 0, "this node has left the job", out);
    return 0;
}

/* ---- time --------------------------------------------------------------------------------- */

/* The pause before something is tried again: it doubles with each failure, and its second half is
 * left to chance, so that those who lost the same thing do not all come back at once. */
uint64_t member_backoff_us(struct member *member, uint32_t failures)
{
    uint64_t pause = MEMBER_BACKOFF_MIN_US;
    for (uint32_t i = 0; i < failures && pause < MEMBER_BACKOFF_MAX_US; i++) {
        pause *= 2;
    }
    pause = pause < MEMBER_BACKOFF_MAX_US ? pause : MEMBER_BACKOFF_MAX_US;
    return pause / 2 + rng_below(&member->rng, (uint32_t)(pause / 2) + 1);
}

static uint64_t latest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When the wait of the script ends with an error; UINT64_MAX: it does not wait for others. */
static uint64_t give_up_us(const struct member *member)
{
    uint64_t since = 0;
    if (member->attached && !member->joined) {
        since = member->attach_us;
    } else if (member->submitted && !merge_applying(member)) {
        since = member->submitted_us;
    } else {
        return UINT64_MAX;
    }
    if (member->catchup.active) {
        since = latest(since, member->catchup.progress_us);
    }
    if (member->state == MEMBER_IN_ROUND) {
        since = latest(since, member->round.progress_us);
    }
    return since + member->config.timeout_us;
}

static void give_up(struct member *member, struct out *out)
{
    char whom[160];
    member_waiting_for(member, whom, sizeof whom);
    struct text text = text_of(member->text, sizeof member->text);
    text_add(&text, "gave up after ");
    text_add_uint(&text, member->config.timeout_us / 1000000);
    text_add(&text, " s; waited for ");
    text_add(&text, whom[0] ? whom : "nobody");
    if (!member->joined) {
        char why[MSG_REASON_MAX];
        text_copy(why, sizeof why, member->text);
        out_add(out, ACTION_CLOSE_MASTER);
        member_over(member, SOLO_ETIMEDOUT, why, out);
        return;
    }
    if (member->state == MEMBER_IN_ROUND) {
        merge_drop(member, out);
    }
    member_complete(member, SOLO_ETIMEDOUT, SOLO_MERGED, out);
    member->submitted = false;
    if (!member->catchup.active) {
        member_rest(member);
    }
    control_reset(member, "a merge timed out", out); /* so that the master forgets our READY */
}

static void on_tick(struct member *member, uint64_t gap_us, struct out *out)
{
    control_tick(member, gap_us, out);
    links_tick(member, out);
    merge_tick(member, out);
    state_tick(member, out);
    if (member->state != MEMBER_ENDED && member->now_us >= give_up_us(member)) {
        give_up(member, out);
    }
}

static void wake(const struct member *member, struct out *out)
{
    if (member->state == MEMBER_OFF || member->state == MEMBER_ENDED) {
        return;
    }
    control_wake(member, out);
    merge_wake(member, out);
    state_wake(member, out);
    out_wake(out, member->links_wake_us);
    out_wake(out, give_up_us(member));
}

/* ---- one event ---------------------------------------------------------------------------- */

static int dispatch(struct member *member, const struct member_event *event, uint64_t gap_us,
                    struct out *out)
{
    switch (event->type) {
    case MEMBER_START:
        if (member->state != MEMBER_OFF) {
            return err_set(SOLO_EINVAL, "a member starts once");
        }
        member_set_state(member, MEMBER_OUTSIDE);
        control_connect(member, out);
        return 0;
    case MEMBER_ATTACH:
        return on_attach(member, event, out);
    case MEMBER_SUBMIT:
        return on_submit(member, event, out);
    case MEMBER_LEAVE:
        return on_leave(member, event, out);
    case MEMBER_MASTER_UP:
        control_up(member, out);
        return 0;
    case MEMBER_MASTER_DOWN:
        control_down(member, event->rc, event->text ? event->text : "", out);
        return 0;
    case MEMBER_MESSAGE:
        control_message(member, event->msg, out);
        return 0;
    case MEMBER_LINK_UP:
        links_up(member, event->peer, out);
        return 0;
    case MEMBER_LINK_DOWN:
        links_down(member, event->peer, FAULT_LINK, event->text ? event->text : "", out);
        return 0;
    case MEMBER_RECEIVED:
        links_received(member, event, out);
        return 0;
    case MEMBER_SENT:
        links_sent(member, event, out);
        return 0;
    case MEMBER_ENCODED:
        merge_encoded(member, event, out);
        return 0;
    case MEMBER_REDUCED:
        merge_reduced(member, event, out);
        return 0;
    case MEMBER_APPLIED:
        merge_applied(member, event, out);
        return 0;
    case MEMBER_ADOPTED:
        state_adopted(member, event->digest, out);
        return 0;
    case MEMBER_TICK:
        on_tick(member, gap_us, out);
        return 0;
    }
    return err_set(SOLO_EINVAL, "no such event");
}

int member_step(struct member *member, const struct member_event *event, struct out *out)
{
    out_clear(out);
    if (member->state == MEMBER_ENDED) {
        return event->type == MEMBER_SUBMIT || event->type == MEMBER_ATTACH
                   ? err_set(SOLO_ECLOSED, "%s", member->text)
                   : 0;
    }
    uint64_t gap_us = event->now_us > member->now_us ? event->now_us - member->now_us : 0;
    member->now_us = event->now_us;
    int rc = dispatch(member, event, gap_us, out);
    wake(member, out);
    return rc;
}

/* ---- words -------------------------------------------------------------------------------- */

static void name_ranks(const struct member *member, const uint8_t *owed, struct text *text)
{
    uint32_t named = 0;
    for (uint32_t slot = 0; slot < member->round.count; slot++) {
        if (!(owed[slot / 8] >> (slot % 8) & 1)) {
            continue;
        }
        uint32_t peer = member->round.slot_peers[slot];
        text_add(text, named++ ? ", node " : "node ");
        text_add_uint(text, peer == ROUND_SELF ? member->config.identity.node_rank
                                               : member->peers[peer].node_rank);
        if (peer != ROUND_SELF) {
            text_add(text, " (");
            text_add(text, member->peers[peer].address);
            text_add(text, ")");
        }
    }
}

void member_waiting_for(const struct member *member, char *buffer, uint32_t size)
{
    struct text text = text_of(buffer, size);
    if (!(member->submitted || (member->attached && !member->joined))) {
        return;
    }
    if (member->control != CONTROL_ADMITTED) {
        text_add(&text, "the master, which does not answer");
    } else if (member->catchup.active) {
        text_add(&text, member->catchup.own ? "its own anchor" : "donors of the anchor");
    } else if (member->state == MEMBER_IN_ROUND && member->round.phase == ROUND_EXCHANGING) {
        uint8_t owed[MSG_OWED_BYTES] = {0};
        round_owed(&member->round, owed);
        name_ranks(member, owed, &text);
    } else if (member->state == MEMBER_IN_ROUND) {
        text_add(&text, "the verdict of the master");
    } else {
        text_add(&text, member->joined
                            ? "other nodes to reach their merge"
                            : "the master to let it in (a job begins with node 0, if node 0 "
                              "started it, and with --min_nodes nodes)");
    }
}
