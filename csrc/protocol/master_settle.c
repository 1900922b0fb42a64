/* After a start: either members of an earlier master come back and tell what the job was, or a
 * new job is founded. Also when everybody who held the anchor has vanished. */
#include "protocol/master_parts.h"

#define LONG_WAIT_LEASES 3u /* without most of the last list, so long; then with who is there */

void settle_report(struct master *master, const struct msg_join *join)
{
    if (join->epoch.incarnation == 0) {
        return; /* it has heard of no job */
    }
    if (join->epoch.incarnation >= master->highest.incarnation &&
        join->epoch.incarnation != master->epoch.incarnation) {
        /* Never an epoch twice, though clocks go back: of two masters that were told the same, the
         * second need not have heard from those whom the first told its list. */
        uint64_t own = master->config.incarnation % MASTER_INCARNATION_SPREAD;
        master->highest.incarnation = join->epoch.incarnation + 1 + own;
    }
    bool newer = epoch_compare(join->epoch, master->expect_epoch) > 0;
    if (master->phase == MASTER_SETTLING && newer) {
        master->expect_epoch = join->epoch;
        master->expect_count = join->epoch_count;
        memcpy(master->expect_ranks, join->epoch_ranks, join->epoch_count * sizeof(uint32_t));
    }
}

/* It does not come back: after a restart nobody waits for it. */
void settle_goodbye(struct master *master, uint32_t rank)
{
    for (uint32_t i = 0; i < master->expect_count; i++) {
        if (master->expect_ranks[i] == rank) {
            master->expect_ranks[i] = master->expect_ranks[--master->expect_count];
            return;
        }
    }
}

/* Who is catching up may be about to hold what the others took with them: he is waited for. */
void settle_again(struct master *master)
{
    master_set_phase(master, MASTER_SETTLING);
    EACH_NODE (master, node) {
        if (node->standing != STANDING_CATCHING_UP || node->owed & OWE_CATCHUP) {
            node->standing = STANDING_JOINING;
        }
        node->owed &= ~(uint32_t)(OWE_CATCHUP | OWE_SUMMON | OWE_BEGIN);
    }
}

static bool somebody_fetches(struct master *master)
{
    EACH_NODE (master, node) {
        if (node->standing == STANDING_CATCHING_UP) {
            return true;
        }
    }
    return false;
}

/* ---- who is there -------------------------------------------------------------------------- */

static uint32_t expected_present(struct master *master)
{
    uint32_t present = 0;
    for (uint32_t i = 0; i < master->expect_count; i++) {
        /* A fresh process with the same rank: the one that was waited for is dead. */
        present += master_node_of_rank(master, master->expect_ranks[i]) != NULL;
    }
    return present;
}

static uint64_t least_wait_us(const struct master *master)
{
    uint64_t lease_us = master->config.lease_us;
    return lease_us > MASTER_FOUND_US ? lease_us : MASTER_FOUND_US;
}

static uint64_t long_wait_us(const struct master *master)
{
    return MASTER_FOUND_US + LONG_WAIT_LEASES * master->config.lease_us;
}

static bool enough(struct master *master)
{
    uint64_t waited_us = master->now_us - master->phase_us;
    if (somebody_fetches(master)) {
        return waited_us >= long_wait_us(master);
    }
    if (master->expect_count == 0) {
        return waited_us >= MASTER_FOUND_US || master->begun;
    }
    uint32_t present = expected_present(master);
    return present == master->expect_count ||
           (waited_us >= least_wait_us(master) && 2 * present > master->expect_count) ||
           waited_us >= long_wait_us(master);
}

/* ---- the round in doubt -------------------------------------------------------------------- */

static bool in_list(const struct master *master, const struct node *node)
{
    return node->returning && epoch_compare(node->epoch, master->expect_epoch) == 0;
}

/* An attempt that this very master began: what became of it is known. */
static bool is_ours(const struct master *master, struct round_id id)
{
    return id.epoch.incarnation == master->epoch.incarnation;
}

/* The latest attempt in doubt that would make a version nobody holds yet. */
static const struct node *latest_doubt(struct master *master, uint64_t version)
{
    const struct node *latest = NULL;
    EACH_NODE (master, node) {
        if (node->doubt.round != version + 1 || node->held.version != version ||
            !in_list(master, node) || is_ours(master, node->doubt)) {
            continue;
        }
        int order = latest ? epoch_compare(node->doubt.epoch, latest->doubt.epoch) : 1;
        if (order > 0 || (order == 0 && node->doubt.attempt > latest->doubt.attempt)) {
            latest = node;
        }
    }
    return latest;
}

/* It may have been committed only if all had sent DONE: whoever is there of that list and is not
 * in doubt about that attempt proves that it was not. */
static bool may_commit(struct master *master, const struct node *doubter)
{
    EACH_NODE (master, node) {
        bool agrees = round_id_equal(node->doubt, doubter->doubt) &&
                      node->doubt_digest == doubter->doubt_digest;
        if (in_list(master, node) && !agrees) {
            return false;
        }
    }
    return true;
}

static void settle_doubts(struct master *master, const struct round_id *committed, uint64_t digest)
{
    EACH_NODE (master, node) {
        if (node->doubt.round == 0) {
            continue;
        }
        bool commit =
            committed && round_id_equal(node->doubt, *committed) && node->doubt_digest == digest;
        node->owed |= commit ? OWE_DOUBT_COMMIT : OWE_DOUBT_ABORT;
        if (commit) {
            node->standing = STANDING_CATCHING_UP;
            node->asked_us = master->now_us;
            node->held.held = false;
        }
    }
}

/* ---- going on ------------------------------------------------------------------------------ */

static struct node *highest_holder(struct master *master, bool live)
{
    struct node *best = NULL;
    EACH_NODE (master, node) {
        bool holds = node->held.held && node->live == live;
        if (holds && (!best || node->held.version > best->held.version)) {
            best = node;
        }
    }
    return best;
}

/* An attempt whose COMMIT reached somebody is committed: he holds its version, made by it. So is
 * one that this master committed itself, though all were lost before they heard of it. */
static bool known_committed(struct master *master, const struct node *doubter)
{
    if (is_ours(master, doubter->doubt)) {
        return round_id_equal(doubter->doubt, master->committed) &&
               doubter->doubt_digest == master->committed_digest;
    }
    EACH_NODE (master, other) {
        if (other->live && other->held.held && other->held.version == doubter->doubt.round &&
            round_id_equal(other->made_by, doubter->doubt)) {
            return true;
        }
    }
    return false;
}

static const struct node *known_doubter(struct master *master, uint64_t version)
{
    EACH_NODE (master, node) {
        bool near = node->doubt.round == version || node->doubt.round == version + 1;
        if (node->doubt.round != 0 && near && known_committed(master, node)) {
            return node;
        }
    }
    return NULL;
}

static void resume(struct master *master, const struct node *holder, struct master_out *out)
{
    uint64_t known = master->founded ? master->version : 0;
    master->founded = master->begun = true;
    master->version = holder->held.version;
    master->digest = holder->held.digest;
    master->digest_known = true;
    master->job_step = holder->held.job_step;
    const char *how = "the highest version of the members is the job's";
    struct round_id id = {0};
    uint64_t digest = 0;
    const struct node *doubter = known_doubter(master, master->version);
    if (doubter) {
        how = "a round in doubt was committed before";
    } else {
        doubter = latest_doubt(master, master->version);
        doubter = doubter && may_commit(master, doubter) ? doubter : NULL;
        how = doubter ? "a round in doubt was committed: all who are here had it whole" : how;
    }
    if (doubter) {
        id = doubter->doubt;
        digest = doubter->doubt_digest;
        master->digest_known = master->version == id.round;
        master->version = id.round;
    }
    if (master->version < known) {
        struct event *lost = master_event_add(out, EVENT_STATE_LOST, EVENT_NOBODY);
        lost->version = known;
        text_copy(lost->text, sizeof lost->text,
                  "nobody holds the latest version any more: an earlier one is the job's");
    }
    settle_doubts(master, id.round ? &id : NULL, digest);
    master->committed = id;
    master->committed_digest = digest;
    struct event *event = master_event_add(out, EVENT_SETTLED, EVENT_NOBODY);
    event->version = master->version;
    event->member_count = expected_present(master);
    text_copy(event->text, sizeof event->text, how);
    master_set_phase(master, MASTER_BETWEEN);
}

/* ---- a new job ----------------------------------------------------------------------------- */

static struct node *source(struct master *master)
{
    struct node *best = highest_holder(master, false);
    if (best) {
        return best;
    }
    EACH_NODE (master, node) {
        if (!best || node->identity.node_rank < best->identity.node_rank) {
            best = node;
        }
    }
    return best;
}

/* When a new job begins without node 0. Scripts load checkpoints on rank 0 alone, as DDP takes
 * rank 0's values: whose process is ready first must not decide. 0: it is there, or not waited for. */
static uint64_t first_until_us(const struct master *master)
{
    uint64_t since_us = UINT64_MAX;
    if (master->begun || !master->config.first_us) {
        return 0;
    }
    for (uint32_t i = 0; i < master->node_count; i++) {
        const struct node *node = &master->nodes[i];
        if (node->used && node->identity.node_rank == 0) {
            return 0;
        }
        if (node->used && node->joined_us < since_us) {
            since_us = node->joined_us;
        }
    }
    return since_us == UINT64_MAX ? 0 : since_us + master->config.first_us;
}

static void found(struct master *master, struct master_out *out)
{
    uint32_t count = 0;
    EACH_NODE (master, node) {
        count++;
        if (node->standing == STANDING_CATCHING_UP) {
            return; /* the source is on its way */
        }
    }
    if (count == 0 || count < master->config.min_nodes || first_until_us(master) > master->now_us) {
        return;
    }
    if (master->founded) { /* not the first time: what the others held is lost */
        struct event *event = master_event_add(out, EVENT_STATE_LOST, EVENT_NOBODY);
        event->version = master->version;
        text_copy(event->text, sizeof event->text,
                  "nobody holds the job's anchor any more: it begins anew");
        master->founded = false;
    }
    struct node *first = source(master);
    master->version = first->held.held ? first->held.version : 0;
    master->digest = first->held.held ? first->held.digest : 0;
    master->job_step = first->held.held ? first->held.job_step : 0;
    master->digest_known = first->held.held;
    master_set_phase(master, MASTER_FOUNDING);
    first->standing = STANDING_CATCHING_UP;
    first->owed |= OWE_CATCHUP;
}

void settle_step(struct master *master, struct master_out *out)
{
    if (master->phase == MASTER_FOUNDING) {
        found(master, out); /* if the source was lost, another is chosen */
        return;
    }
    if (!enough(master)) {
        return;
    }
    EACH_NODE (master, node) {
        node->standing = STANDING_JOINING; /* also of who was fetching for too long */
    }
    struct node *holder = highest_holder(master, true);
    if (holder) {
        resume(master, holder, out);
    } else {
        found(master, out);
    }
}

void settle_wake(const struct master *master, struct master_out *out)
{
    uint64_t at_us[] = {first_until_us(master), master->phase_us + MASTER_FOUND_US,
                        master->phase_us + least_wait_us(master),
                        master->phase_us + long_wait_us(master)};
    uint32_t count = master->phase == MASTER_SETTLING   ? sizeof at_us / sizeof *at_us
                     : master->phase == MASTER_FOUNDING ? 1 /* its source may have gone */
                                                        : 0;
    for (uint32_t i = 0; i < count; i++) {
        if (at_us[i] > master->now_us && at_us[i] < out->wake_us) {
            out->wake_us = at_us[i];
        }
    }
}
