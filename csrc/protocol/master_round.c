/* A round from the first READY to the last DONE. */
#include "protocol/master_parts.h"

#define WEIGHT_MAX      ((uint64_t)1 << 40)
#define STALL_BYTES     (8u << 20) /* so much moves, at the slowest rate, between two signs of life */
#define STALLS_OF_SLACK 3u         /* members tell stalls; the master waits so much longer */

/* ---- ready --------------------------------------------------------------------------------- */

static double sane(double value)
{
    return value >= 0 && value < 1e300 ? value : 0;
}

void rounds_ready(struct master *master, struct node *node, const struct msg_ready *ready)
{
    if (!node->listed || (node->standing != STANDING_MEMBER && node->standing != STANDING_READY)) {
        return;
    }
    node->ready = *ready;
    node->ready.weight = ready->weight < WEIGHT_MAX ? ready->weight : WEIGHT_MAX;
    node->ready.lr_sum = sane(ready->lr_sum);
    node->held.version = ready->version;
    node->held.digest = ready->digest;
    if (ready->version != master->version) {
        list_remove(master, node); /* it missed something: it is caught up */
        node->standing = STANDING_JOINING;
        return;
    }
    node->standing = STANDING_READY;
    node->summoned = false;
    if (master->first_ready_us == 0) {
        master->first_ready_us = master->now_us;
    }
}

static bool all_ready(struct master *master)
{
    EACH_NODE (master, node) {
        if (node->listed && node->standing != STANDING_READY) {
            return false;
        }
    }
    return master->listed_count > 0;
}

/* ---- summon -------------------------------------------------------------------------------- */

static uint64_t grace_us(const struct master *master)
{
    uint64_t half_us = master->interval_us / 2;
    return half_us > MASTER_GRACE_MIN_US ? half_us : MASTER_GRACE_MIN_US;
}

/* Nobody waits a whole interval for a joiner: when all others are ready it is asked to merge
 * what it has; stragglers get a grace first. */
static void summon(struct master *master, struct master_out *out)
{
    if (master->first_ready_us == 0) {
        return;
    }
    uint32_t full = 0, full_missing = 0;
    EACH_NODE (master, node) {
        full += node->listed && !node->partial;
        full_missing += node->listed && !node->partial && node->standing != STANDING_READY;
    }
    bool partial_only = full > 0 && full_missing == 0;
    bool late = master->now_us >= master->first_ready_us + grace_us(master);
    EACH_NODE (master, node) {
        bool asked = late || (partial_only && node->partial);
        if (node->listed && node->standing == STANDING_MEMBER && asked && !node->summoned) {
            node->summoned = true;
            node->owed |= OWE_SUMMON;
            struct event *event = master_event_add(out, EVENT_SUMMONED, node->identity.node_rank);
            event->version = master->version;
        }
    }
}

/* ---- begin --------------------------------------------------------------------------------- */

static uint64_t model_bytes(const struct master *master)
{
    struct plan_model model;
    memcpy(model.elements, master->settings.elements, sizeof model.elements);
    return plan_bytes(&model);
}

/* Joiners are let in between rounds: so long are the others held for a transfer under way. */
static uint64_t hold_us(const struct master *master)
{
    return master_transfer_us(master, 2 * model_bytes(master));
}

static bool joins(const struct node *node)
{
    return node->standing == STANDING_JOINING || node->standing == STANDING_CATCHING_UP;
}

/* One whose transfers fail (a firewall, a wrong --worker_url) does not hold every round. */
static bool joiners(struct master *master)
{
    EACH_NODE (master, node) {
        if (joins(node) && node->catchups < MASTER_CATCHUPS_HELD) {
            return true;
        }
    }
    return false;
}

/* A round begins though it was held for these: that counts as a transfer that failed. */
static void held_in_vain(struct master *master)
{
    EACH_NODE (master, node) {
        node->catchups += joins(node) && node->catchups < MASTER_CATCHUPS_HELD;
    }
}

static bool enough_nodes(struct master *master, struct master_out *out)
{
    /* Once a founder has finished the job is ending: nobody will come in its place. */
    if (master->listed_count >= master->config.min_nodes || master->finished_any) {
        master->waiting_told = false;
        return true;
    }
    if (!master->waiting_told) {
        master->waiting_told = true;
        struct event *event = master_event_add(out, EVENT_WAITING, EVENT_NOBODY);
        event->member_count = master->listed_count;
        struct text text = text_of(event->text, sizeof event->text);
        text_add(&text, "ready, but --min_nodes asks for ");
        text_add_uint(&text, master->config.min_nodes);
        text_add(&text, " and ");
        text_add_uint(&text, master->listed_count);
        text_add(&text, " are here");
    }
    return false;
}

/* One kind of weight for all: a node that cannot tell its samples tells steps alone. */
static bool all_know_samples(struct master *master)
{
    EACH_NODE (master, node) {
        if (node->listed && !node->left_out && node->ready.weight == 0 && node->ready.steps > 0) {
            return false;
        }
    }
    return true;
}

static uint64_t weight_of(const struct node *node, bool by_samples)
{
    if (by_samples || node->ready.steps == 0) {
        return node->ready.weight;
    }
    uint64_t ranks = node->identity.device_count ? node->identity.device_count : 1;
    return node->ready.steps < WEIGHT_MAX / ranks ? node->ready.steps * ranks : WEIGHT_MAX;
}

static void fill_means(struct master *master, struct msg_begin *begin)
{
    double weights = 0, lr = 0, steps = 0;
    uint64_t most = 0;
    bool by_samples = all_know_samples(master);
    for (uint32_t i = 0; i < begin->count; i++) {
        begin->weights[i] = 0;
    }
    EACH_NODE (master, node) {
        if (!node->listed || node->left_out) {
            continue;
        }
        begin->weights[node->slot] = weight_of(node, by_samples);
        double weight = (double)begin->weights[node->slot];
        weights += weight;
        lr += weight * node->ready.lr_sum;
        steps += weight * (double)node->ready.steps;
        if (weight > 0 && node->ready.steps > most) {
            most = node->ready.steps;
        }
    }
    begin->lr_sum = weights > 0 ? lr / weights : 0;
    begin->steps = weights > 0 ? steps / weights : 0;
    begin->job_step = master->job_step + most;
}

static void begin(struct master *master, struct master_out *out)
{
    bool same_round = master->round.round == master->version + 1;
    master->round.attempt = same_round ? master->round.attempt + 1 : 1;
    master->round.round = master->version + 1;
    master->round.epoch = master->epoch;
    master->attempts++;
    master->begun = true;
    master->begin_us = master->progress_us = master->now_us;
    uint64_t bytes = model_bytes(master);
    master->stall_us = master_transfer_us(master, bytes < STALL_BYTES ? bytes : STALL_BYTES);
    master->msg_begin.type = FRAME_BEGIN;
    struct msg_begin *begin = &master->msg_begin.as.begin;
    begin->id = master->round;
    begin->version = master->version;
    begin->count = master->listed_count;
    begin->stall_ms = (uint32_t)(master->stall_us / 1000);
    fill_means(master, begin);
    EACH_NODE (master, node) {
        if (node->listed) {
            node->standing = STANDING_EXCHANGING;
            node->owed |= OWE_BEGIN;
        }
    }
    master_set_phase(master, MASTER_EXCHANGING);
    struct event *event = master_event_add(out, EVENT_BEGIN, EVENT_NOBODY);
    event->id = master->round;
    event->version = master->version;
    event->member_count = master->listed_count;
}

static void try_begin(struct master *master, struct master_out *out)
{
    if (master->relist || !master->digest_known || !all_ready(master)) {
        master->all_ready_us = 0;
        return;
    }
    if (master->all_ready_us == 0) {
        master->all_ready_us = master->now_us;
    }
    bool held = joiners(master) && master->now_us < master->all_ready_us + hold_us(master);
    if (!held && master->now_us >= master->retry_us && enough_nodes(master, out)) {
        held_in_vain(master);
        begin(master, out);
    }
}

/* ---- done ---------------------------------------------------------------------------------- */

static bool all_done(struct master *master)
{
    EACH_NODE (master, node) {
        if (node->listed && node->standing != STANDING_DONE) {
            return false;
        }
    }
    return true;
}

static uint32_t done_with(struct master *master, uint64_t digest)
{
    uint32_t count = 0;
    EACH_NODE (master, node) {
        count += node->listed && node->done.mean_digest == digest;
    }
    return count;
}

/* All have the whole mean; is it the same? The odd ones out are named and blamed. */
static void judge(struct master *master, struct master_out *out)
{
    struct node *most = NULL;
    uint32_t most_count = 0;
    EACH_NODE (master, node) {
        uint32_t count = node->listed ? done_with(master, node->done.mean_digest) : 0;
        if (count > most_count) {
            most = node;
            most_count = count;
        }
    }
    if (most_count == master->listed_count) {
        verdict_commit(master, out);
        return;
    }
    uint32_t odd_rank = EVENT_NOBODY;
    EACH_NODE (master, node) {
        if (node->listed && most && node->done.mean_digest != most->done.mean_digest) {
            struct event *event = master_event_add(out, EVENT_ODD, node->identity.node_rank);
            event->id = master->round;
            event->digest = node->done.mean_digest;
            text_copy(event->text, sizeof event->text, "it received another mean than the others");
            node->blame++;
            odd_rank = node->identity.node_rank;
        }
    }
    verdict_abort(master, odd_rank, "the members did not receive the same mean", out);
}

void rounds_done(struct master *master, struct node *node, const struct msg_done *done,
                 struct master_out *out)
{
    if (master->phase != MASTER_EXCHANGING || !node->listed ||
        node->standing != STANDING_EXCHANGING || !round_id_equal(done->id, master->round)) {
        return;
    }
    node->done = *done;
    node->standing = STANDING_DONE;
    master->progress_us = master->now_us;
    if (all_done(master)) {
        judge(master, out);
    }
}

static void check_stall(struct master *master, struct master_out *out)
{
    if (master->now_us < master->progress_us + STALLS_OF_SLACK * master->stall_us) {
        return;
    }
    uint32_t rank = EVENT_NOBODY;
    EACH_NODE (master, node) {
        if (node->standing == STANDING_EXCHANGING) {
            node->blame++;
            rank = node->identity.node_rank;
        }
    }
    verdict_abort(master, rank, "no progress, and no member says why", out);
}

/* ---- every step ---------------------------------------------------------------------------- */

/* Nobody listed, and nobody who will be as soon as he has applied what was committed. */
static bool deserted(struct master *master)
{
    EACH_NODE (master, node) {
        bool applies = node->standing == STANDING_CATCHING_UP && node->doubt.round != 0 &&
                       node->doubt.round == master->version;
        if (node->listed || applies) {
            return false;
        }
    }
    return true;
}

void rounds_step(struct master *master, struct master_out *out)
{
    if (master->phase == MASTER_EXCHANGING) {
        check_stall(master, out);
    }
    if (master->phase == MASTER_EXCHANGING) {
        return;
    }
    list_confirm(master, out);
    join_admit(master, out);
    if (deserted(master)) {
        settle_again(master);
        return;
    }
    verdict_blame(master, out);
    list_send(master, out);
    summon(master, out);
    try_begin(master, out);
}

static void at(struct master_out *out, uint64_t at_us)
{
    out->wake_us = at_us < out->wake_us ? at_us : out->wake_us;
}

void rounds_wake(const struct master *master, struct master_out *out)
{
    if (master->phase == MASTER_EXCHANGING) {
        at(out, master->progress_us + STALLS_OF_SLACK * master->stall_us);
    }
    if (master->phase != MASTER_BETWEEN) {
        return;
    }
    if (master->relist) {
        at(out, master->relist_us);
    }
    if (master->retry_us > master->now_us) {
        at(out, master->retry_us);
    }
    if (master->all_ready_us && master->now_us < master->all_ready_us + hold_us(master)) {
        at(out, master->all_ready_us + hold_us(master));
    }
    if (master->first_ready_us && master->now_us < master->first_ready_us + grace_us(master)) {
        at(out, master->first_ready_us + grace_us(master));
    }
}
