/* The one verdict of each attempt, and on whose account failures go. */
#include "protocol/master_parts.h"

#define RETRY_MIN_US 10000u /* before an attempt is repeated after a fault; doubles */
#define RETRY_MAX_US 1000000u

static struct msg_verdict *verdict(struct master *master, enum frame_type type)
{
    master->msg_verdict.type = type;
    struct msg_verdict *verdict = &master->msg_verdict.as.verdict;
    *verdict = (struct msg_verdict){.id = master->round, .rank = EVENT_NOBODY};
    EACH_NODE (master, node) {
        if (node->standing == STANDING_EXCHANGING || node->standing == STANDING_DONE) {
            node->owed = (node->owed & ~(uint32_t)OWE_BEGIN) | OWE_VERDICT;
        }
    }
    return verdict;
}

/* ---- commit -------------------------------------------------------------------------------- */

static void tell_twins(struct msg_verdict *commit, uint32_t rank, uint32_t other_rank)
{
    struct text text = text_of(commit->text, sizeof commit->text);
    commit->rank = rank;
    text_add(&text, "nodes ");
    text_add_uint(&text, rank);
    text_add(&text, " and ");
    text_add_uint(&text, other_rank);
    text_add(&text, " train on the same data: their deltas are the same bits");
}

/* Equal deltas of two nodes: they train on the same data. The verdict says it to the members, for
 * their users rarely read the master's log. */
static void find_twins(struct master *master, struct msg_verdict *commit, struct master_out *out)
{
    EACH_NODE (master, node) {
        for (struct node *other = node + 1; other < node_end; other++) {
            if (other->used && other->listed && node->listed && node->done.delta_digest != 0 &&
                node->done.delta_digest == other->done.delta_digest) {
                struct event *event = master_event_add(out, EVENT_TWINS, node->identity.node_rank);
                event->other_rank = other->identity.node_rank;
                event->id = master->round;
                text_copy(event->text, sizeof event->text,
                          "their deltas are the same bits: both train on the same data");
                tell_twins(commit, node->identity.node_rank, other->identity.node_rank);
            }
        }
    }
}

static void tell_commit(struct master *master, struct master_out *out)
{
    const struct msg_begin *begin = &master->msg_begin.as.begin;
    struct event *event = master_event_add(out, EVENT_COMMITTED, EVENT_NOBODY);
    event->id = master->round;
    event->version = master->version;
    event->member_count = master->listed_count;
    event->digest = master->committed_digest;
    event->us = master->now_us - master->begin_us;
    event->steps_millionths = (uint64_t)(begin->steps < 1e12 ? begin->steps * 1e6 : 0);
    event->wait_us = master->first_ready_us ? master->begin_us - master->first_ready_us : 0;
    for (uint32_t i = 0; i < begin->count; i++) {
        event->contributor_count += begin->weights[i] > 0;
    }
    EACH_NODE (master, node) {
        if (node->listed) {
            const struct msg_done *done = &node->done;
            event->bytes += done->sent_bytes;
            event->apply_us = done->apply_us > event->apply_us ? done->apply_us : event->apply_us;
        }
    }
}

void verdict_commit(struct master *master, struct master_out *out)
{
    struct msg_verdict *commit = verdict(master, FRAME_COMMIT);
    find_twins(master, commit, out);
    EACH_NODE (master, node) {
        if (node->listed) {
            commit->mean_digest = node->done.mean_digest;
        }
    }
    master->committed = master->round;
    master->committed_digest = commit->mean_digest;
    master->version = master->round.round;
    master->job_step = master->msg_begin.as.begin.job_step;
    master->digest_known = false;
    tell_commit(master, out);
    EACH_NODE (master, node) {
        if (node->listed) {
            node->standing = STANDING_MEMBER;
            node->partial = node->summoned = node->left_out = false;
            node->blame = 0;
        }
    }
    master->attempts = 0;
    master->first_ready_us = master->all_ready_us = master->retry_us = 0;
    master->interval_us = master->last_commit_us ? master->now_us - master->last_commit_us : 0;
    master->last_commit_us = master->now_us;
    master_set_phase(master, MASTER_BETWEEN);
}

/* ---- abort --------------------------------------------------------------------------------- */

void verdict_abort(struct master *master, uint32_t account, const char *why, struct master_out *out)
{
    /* All links of one member may break, one after the other. */
    bool again = master->attempts < MASTER_ATTEMPTS_MAX + master->listed_count;
    struct msg_verdict *told = verdict(master, FRAME_ABORT);
    told->again = again;
    told->rc = SOLO_EABORTED;
    told->rank = account;
    text_copy(told->text, sizeof told->text, why);
    struct event *event = master_event_add(out, EVENT_ABORTED, account);
    event->id = master->round;
    event->member_count = master->listed_count;
    text_copy(event->text, sizeof event->text, why);
    EACH_NODE (master, node) {
        if (node->standing == STANDING_EXCHANGING || node->standing == STANDING_DONE) {
            node->standing = again ? STANDING_READY : STANDING_MEMBER;
        }
        node->left_out = node->left_out && again;
    }
    if (!again) {
        master->attempts = 0;
        master->first_ready_us = 0;
    }
    master->all_ready_us = 0;
    master_set_phase(master, MASTER_BETWEEN);
}

static void retry_later(struct master *master)
{
    uint64_t pause_us = RETRY_MIN_US;
    for (uint32_t i = 1; i < master->attempts && pause_us < RETRY_MAX_US; i++) {
        pause_us *= 2;
    }
    master->retry_us = master->now_us + pause_us;
}

/* ---- faults -------------------------------------------------------------------------------- */

static void blame_rank(struct master *master, uint32_t rank)
{
    struct node *node = master_node_of_rank(master, rank);
    if (node) {
        node->blame++;
    }
}

static uint32_t blame_owed(struct master *master, const uint8_t *owed)
{
    uint32_t rank = EVENT_NOBODY;
    EACH_NODE (master, node) {
        if (node->listed && node->slot < SOLO_MEMBERS_MAX &&
            owed[node->slot / 8] >> (node->slot % 8) & 1) {
            node->blame++;
            rank = node->identity.node_rank;
        }
    }
    return rank;
}

static uint32_t on_whose_account(struct master *master, struct node *node,
                                 const struct msg_fault *fault, struct master_out *out)
{
    struct event *event = NULL;
    switch (fault->kind) {
    case FAULT_NONFINITE:
        master->attempts = node->left_out ? master->attempts : 0; /* the next one is another */
        node->left_out = true;
        event = master_event_add(out, EVENT_NONFINITE, node->identity.node_rank);
        event->id = fault->id;
        text_copy(event->text, sizeof event->text, fault->text);
        return node->identity.node_rank;
    case FAULT_LINK:
    case FAULT_CORRUPT:
        blame_rank(master, fault->rank);
        return fault->rank;
    case FAULT_STALL:
        return blame_owed(master, fault->owed);
    case FAULT_LOCAL:
        node->blame++;
        return node->identity.node_rank;
    }
    return EVENT_NOBODY;
}

static void fault_text(const struct node *node, const struct msg_fault *fault, char *buffer,
                       size_t size)
{
    static const char *const what[] = {
        [FAULT_NONFINITE] = " has a NaN or Inf in ",
        [FAULT_LINK] = " lost its link to node ",
        [FAULT_STALL] = " waits: ",
        [FAULT_CORRUPT] = " got a wrong checksum from node ",
        [FAULT_LOCAL] = " failed: ",
    };
    struct text text = text_of(buffer, size);
    text_add(&text, "node ");
    text_add_uint(&text, node->identity.node_rank);
    text_add(&text, what[fault->kind]);
    if (fault->kind == FAULT_LINK || fault->kind == FAULT_CORRUPT) {
        text_add_uint(&text, fault->rank);
        text_add(&text, ": ");
    }
    text_add(&text, fault->text);
}

/* Only the first fault of an attempt ends it; later ones of the same attempt still count. */
void verdict_fault(struct master *master, struct node *node, const struct msg_fault *fault,
                   struct master_out *out)
{
    if (!node->listed || !round_id_equal(fault->id, master->round) ||
        round_id_equal(fault->id, master->committed)) {
        return;
    }
    uint32_t account = on_whose_account(master, node, fault, out);
    if (master->phase != MASTER_EXCHANGING) {
        return;
    }
    char why[MSG_REASON_MAX];
    fault_text(node, fault, why, sizeof why);
    verdict_abort(master, account, why, out);
    if (fault->kind != FAULT_NONFINITE) {
        retry_later(master);
    }
}

/* The node with most failures on its account goes, of equals the one that came last; then the
 * others start counting anew. */
void verdict_blame(struct master *master, struct master_out *out)
{
    struct node *worst = NULL;
    EACH_NODE (master, node) {
        if (node->listed && node->blame >= MASTER_BLAME_MAX &&
            (!worst || node->blame > worst->blame ||
             (node->blame == worst->blame && node->slot > worst->slot))) {
            worst = node;
        }
    }
    if (!worst || master->now_us < master->retry_us) {
        return; /* the other reports of the last attempt may still come */
    }
    if (master->listed_count == 1) {
        worst->blame = 0; /* nobody else would go on */
        return;
    }
    EACH_NODE (master, node) {
        node->blame = node == worst ? node->blame : 0;
    }
    master->attempts = 0;
    join_drop(master, worst, SOLO_EABORTED, "too many failed rounds on its account", out);
}
