/* The promises, looked at while the world runs and when it has ended. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* After the last fault the job may still need: the master's long wait for who does not come
 * back, the longest penalty of a node that was dropped, a catch-up. */
static uint64_t quiet_us(const struct world *world)
{
    return world->calm_us + 15000000u + 5 * world->lease_us + 2 * world->timeout_us;
}

static struct sim_node *node_of(struct world *world, uint64_t instance)
{
    for (uint32_t i = 1; i <= world->node_count; i++) {
        if (world->procs[i].alive && world->nodes[i].instance == instance) {
            return &world->nodes[i];
        }
    }
    return NULL;
}

static struct attempt *attempt_of(struct world *world, const struct round_id *id)
{
    for (uint32_t i = 0; i < 32 && i < world->attempt_count; i++) {
        if (round_id_equal(world->attempts[i].id, *id)) {
            return &world->attempts[i];
        }
    }
    return NULL;
}

static void attempt_free(struct attempt *attempt)
{
    free(attempt->parts);
    free(attempt->mean);
    memset(attempt, 0, sizeof *attempt);
}

void check_free(struct world *world)
{
    for (uint32_t i = 0; i < 32; i++) {
        attempt_free(&world->attempts[i]);
    }
}

/* ---- begin ---------------------------------------------------------------------------------- */

static struct attempt *record(struct world *world, const struct msg_begin *begin)
{
    struct attempt *attempt = &world->attempts[world->attempt_count++ % 32];
    attempt_free(attempt);
    attempt->id = begin->id;
    attempt->master_life = world->procs[SIM_MASTER].life;
    attempt->part_count = begin->count;
    attempt->parts = calloc(begin->count, sizeof *attempt->parts);
    attempt->mean = calloc(world->cells + 1, sizeof *attempt->mean);
    if (!attempt->parts || !attempt->mean) {
        abort();
    }
    return attempt;
}

/* What a node brings is what it did since the very anchor that the round begins with, and weighs
 * that much; only one with a NaN may be left out. */
static void check_part(struct world *world, const struct sim_node *node, const struct part *part,
                       uint64_t version)
{
    uint64_t weight = (part->to_steps - part->from_steps) * SIM_SAMPLES_PER_STEP;
    if (part->weight != weight && !(part->weight == 0 && node->nan)) {
        sim_fail(world, "promise 4: n%u weighs %llu and did %llu", node->rank,
                 (unsigned long long)part->weight, (unsigned long long)weight);
    }
    if (part->weight > 0 && node->version == version && node->local_version != version) {
        sim_fail(world, "promise 4: n%u brings to version %llu what it did from version %llu",
                 node->rank, (unsigned long long)version, (unsigned long long)node->local_version);
    }
}

static void check_steps(struct world *world, const struct sim_node *node,
                        const struct attempt *attempt, uint64_t job_step)
{
    uint64_t most = 0;
    for (uint32_t slot = 0; slot < attempt->part_count; slot++) {
        const struct part *part = &attempt->parts[slot];
        uint64_t steps = part->to_steps - part->from_steps;
        most = part->weight > 0 && steps > most ? steps : most;
    }
    if (job_step != node->member->held.job_step + most) {
        sim_fail(world, "the job is at step %llu, not at %llu + %llu", (unsigned long long)job_step,
                 (unsigned long long)node->member->held.job_step, (unsigned long long)most);
    }
}

/* Promise 2: members at one version hold the same bits. Looked at whenever they are to merge. */
void check_begin(struct world *world, const struct msg_begin *begin)
{
    if (attempt_of(world, &begin->id)) {
        return; /* told to another one already */
    }
    struct attempt *attempt = record(world, begin);
    struct sim_node *first = NULL;
    bool all = true;
    if (begin->count < world->min_nodes && !world->master->finished_any) {
        sim_fail(world, "a round of %u begins, %u are asked for", begin->count, world->min_nodes);
    }
    for (uint32_t slot = 0; slot < begin->count; slot++) {
        struct sim_node *node = node_of(world, world->master->members.rows[slot].identity.instance);
        if (!node || !node->waiting || node->member->control != CONTROL_ADMITTED) {
            all = false;
            continue; /* it has died, gave up or left this connection; the attempt cannot succeed */
        }
        attempt->parts[slot] = (struct part){.proc = node->proc,
                                             .life = world->procs[node->proc].life,
                                             .from_steps = node->steps_at_anchor,
                                             .to_steps = node->steps_done,
                                             .weight = begin->weights[slot]};
        for (uint32_t i = 0; i < world->cells; i++) {
            attempt->mean[i] += begin->weights[slot] * (node->anchor[i] - node->local[i]);
        }
        check_part(world, node, &attempt->parts[slot], begin->version);
        if (node->version != begin->version) {
            all = false;
            continue;
        }
        first = first ? first : node;
        if (memcmp(first->anchor, node->anchor, world->cells * 8) != 0 ||
            (world->momentum &&
             memcmp(first->momentum, node->momentum, world->momentum_cells * 8) != 0)) {
            sim_fail(world, "promise 2: n%u and n%u hold version %llu with different bits",
                     first->rank, node->rank, (unsigned long long)begin->version);
        }
    }
    if (first && all) {
        check_steps(world, first, attempt, begin->job_step);
    }
}

static bool somebody_knows(const struct world *world, const struct told_list *list)
{
    for (uint32_t i = 1; i <= world->node_count; i++) {
        const struct sim_node *node = &world->nodes[i];
        if (world->procs[i].alive && !node->over && node->joined && node->born_us < list->told_us) {
            return true;
        }
    }
    return false;
}

/* An epoch names one list, whichever master made it, as long as there is who was told of it. */
void check_members(struct world *world, const struct msg_members *members)
{
    uint64_t hash = members->listed_count;
    for (uint32_t i = 0; i < members->listed_count; i++) {
        hash = hash * 0x100000001b3u ^ members->rows[i].identity.instance;
    }
    for (uint32_t i = 0; i < SIM_LISTS && i < world->list_count; i++) {
        const struct told_list *list = &world->lists[i];
        if (epoch_compare(list->epoch, members->epoch) == 0) {
            if (list->members != hash && somebody_knows(world, list)) {
                sim_fail(world, "promise 1: epoch %llu.%u is told again with other members",
                         (unsigned long long)members->epoch.incarnation, members->epoch.counter);
            }
            return;
        }
    }
    world->lists[world->list_count++ % SIM_LISTS] =
        (struct told_list){members->epoch, hash, world->now_us};
}

/* Bits differ only where a fault has changed them. */
void check_event(struct world *world, const struct event *event)
{
    if (event->kind == EVENT_ODD && !world->bits_changed && !world->excused) {
        sim_fail(world, "promise 2: node %d differs: %s", (int)event->rank, event->text);
    }
}

/* Residuals are those of the same members' last round, or none. */
void check_round(struct world *world, struct sim_node *node, bool fresh_residual)
{
    bool same = epoch_compare(node->residual_epoch, node->member->round.id.epoch) == 0;
    if (fresh_residual == same) {
        sim_fail(world, "n%u: residuals are %s over a change of members", node->rank,
                 same ? "reset without" : "kept");
    }
}

/* ---- verdicts ------------------------------------------------------------------------------- */

/* Promise 4: what a node did enters at most one committed round. */
static void enter(struct world *world, struct attempt *attempt)
{
    for (uint32_t i = 0; i < attempt->part_count; i++) {
        const struct part *part = &attempt->parts[i];
        if (part->proc == 0 || part->weight == 0 || !world->procs[part->proc].alive ||
            world->procs[part->proc].life != part->life) {
            continue;
        }
        struct sim_node *node = &world->nodes[part->proc];
        if (node->over) {
            continue; /* it has left, and with it perhaps the only copy of a later version */
        }
        if (part->from_steps < node->committed_steps) {
            sim_fail(world, "promise 4: steps %llu of n%u enter a second committed round",
                     (unsigned long long)part->from_steps, node->rank);
        }
        node->committed_steps = part->to_steps;
    }
}

/* Promise 3: committed for all of its members, so all of them have the whole mean. */
static void check_whole(struct world *world, const struct attempt *attempt)
{
    for (uint32_t i = 0; i < attempt->part_count; i++) {
        const struct part *part = &attempt->parts[i];
        if (part->proc == 0 || !world->procs[part->proc].alive ||
            world->procs[part->proc].life != part->life) {
            continue;
        }
        const struct sim_node *node = &world->nodes[part->proc];
        const struct member *member = node->member;
        if (member->state == MEMBER_IN_ROUND && member->round.phase == ROUND_EXCHANGING &&
            round_id_equal(member->round.id, attempt->id)) {
            sim_fail(world, "promise 3: committed before n%u has the whole mean", node->rank);
        }
    }
}

/* Promise 3: one verdict for each attempt. */
void check_verdict(struct world *world, enum frame_type type, const struct msg_verdict *verdict)
{
    struct attempt *attempt = attempt_of(world, &verdict->id);
    if (!attempt) {
        return;
    }
    if (type == FRAME_COMMIT && !attempt->committed) {
        attempt->committed = true;
        if (!world->excused) {
            check_whole(world, attempt);
            enter(world, attempt);
        }
    }
    if (type == FRAME_COMMIT && verdict->id.round > world->master_version) {
        world->master_version = verdict->id.round;
    }
}

/* A verdict that nobody heard, or nobody who is alive, is none: another master may find otherwise. */
void check_heard_abort(struct world *world, const struct sim_node *node,
                       const struct msg_verdict *verdict)
{
    struct attempt *attempt = attempt_of(world, &verdict->id);
    if (attempt && node->member->state == MEMBER_IN_ROUND &&
        round_id_equal(node->member->round.id, verdict->id)) {
        attempt->abort_proc = node->proc;
        attempt->abort_life = world->procs[node->proc].life;
    }
}

/* Promises 1 and 3: an anchor is changed by a committed attempt alone, and by the sum of what
 * its members brought. */
void check_applied(struct world *world, struct sim_node *node, const struct round_id *id)
{
    struct attempt *attempt = attempt_of(world, id);
    if (!attempt || !attempt->committed) {
        sim_fail(world, "promise 1: n%u applies round %llu.%u that was not committed", node->rank,
                 (unsigned long long)id->round, id->attempt);
        return;
    }
    bool aborted = attempt->abort_proc && world->procs[attempt->abort_proc].alive &&
                   !world->nodes[attempt->abort_proc].over &&
                   world->procs[attempt->abort_proc].life == attempt->abort_life;
    if (aborted && !world->excused) {
        sim_fail(world, "promise 3: round %llu.%u was committed and aborted",
                 (unsigned long long)id->round, id->attempt);
    }
    /* The only survivor of a lost master has nobody to compare its mean with. */
    bool alone = node->unseen && attempt->master_life != world->procs[SIM_MASTER].life;
    if (!alone && memcmp(node->mean, attempt->mean, world->cells * 8) != 0) {
        sim_fail(world, "promise 4: the mean of round %llu.%u is not that of its members",
                 (unsigned long long)id->round, id->attempt);
    }
}

/* Each rank of the last list is here again, though perhaps as another process. */
static bool all_expected(struct world *world)
{
    for (uint32_t i = 0; i < world->master->expect_count; i++) {
        bool here = false;
        for (uint32_t j = 0; j < world->master->node_count; j++) {
            const struct node *node = &world->master->nodes[j];
            here =
                here || (node->used && node->identity.node_rank == world->master->expect_ranks[i]);
        }
        if (!here) {
            return false;
        }
    }
    return true;
}

/* Promise 6. A master that settles without a node that is alive but does not come (cut off for
 * longer than the waits allow) may make versions again: from then on only the job as the master
 * knows it is looked at. */
void check_settled(struct world *world, const struct event *event)
{
    bool early = false;
    uint64_t least_us = world->lease_us > MASTER_FOUND_US ? world->lease_us : MASTER_FOUND_US;
    for (uint32_t i = 1; i <= world->node_count; i++) {
        const struct sim_node *node = &world->nodes[i];
        if (!world->procs[i].alive || !node->member->joined || node->over) {
            continue;
        }
        bool here = false;
        for (uint32_t j = 0; j < world->master->node_count; j++) {
            const struct node *known = &world->master->nodes[j];
            here = here || (known->used && known->identity.instance == node->instance);
        }
        early = early || (!here && node->version != UINT64_MAX &&
                          world->now_us < world->settling_us + least_us / 100 * 99);
        world->excused = world->excused || !here;
        bool doubtful = node->member->state == MEMBER_IN_ROUND;
        if (here && node->member->held.held && !doubtful && event->kind == EVENT_SETTLED &&
            node->member->held.version > world->master->version) {
            sim_fail(world, "promise 6: settled on version %llu, n%u holds %llu",
                     (unsigned long long)world->master->version, node->rank,
                     (unsigned long long)node->member->held.version);
        }
    }
    if (early && world->master->expect_count > 0 && !all_expected(world)) {
        sim_fail(world, "promise 6: settled after %.3f s without a member that is alive",
                 (double)(world->now_us - world->settling_us) / 1e6);
    }
    bool lost = event->kind == EVENT_SETTLED && world->master->version < world->master_version;
    for (uint32_t i = 1; lost && !world->excused && i <= world->node_count; i++) {
        const struct sim_node *node = &world->nodes[i];
        if (world->procs[i].alive && !node->over && node->member->held.held &&
            node->version == world->master_version) {
            sim_fail(world, "promise 6: version %llu is lost though n%u holds it",
                     (unsigned long long)world->master_version, node->rank);
        }
    }
    if (world->master->version < world->master_version) {
        world->master_version = world->master->version;
        for (uint32_t i = 1; i <= world->node_count; i++) {
            /* The rounds since its anchor went with those who held them: they never were. */
            world->nodes[i].committed_steps = world->nodes[i].steps_at_anchor;
        }
    }
}

/* ---- the script's results ------------------------------------------------------------------- */

static bool explained(const struct world *world, const struct sim_node *node, int rc)
{
    if (world->fault_count == 0) { /* a late node may find the job, and its master, at an end */
        return rc == SOLO_EOVER || world->over;
    }
    if (rc == SOLO_EABORTED) {
        return false; /* whoever makes rounds fail is found and dropped before that */
    }
    bool few = world->master->listed_count < world->min_nodes;
    return rc == SOLO_EOVER || rc == SOLO_ECLOSED || world->over || few ||
           node->wait_since_us < quiet_us(world);
}

void check_joined(struct world *world, struct sim_node *node, const struct member_result *result)
{
    if (result->rc < 0 && !explained(world, node, result->rc)) {
        sim_fail(world, "promise 5: n%u could not join: %s: %s", node->rank,
                 solo_error_name(result->rc), node->member->text);
    }
    if (result->rc == 0 && !result->replaced &&
        memcmp(node->local, node->anchor, world->cells * sizeof *node->local) != 0) {
        sim_fail(world, "promise 1: n%u joins with values of its own that are not the anchor",
                 node->rank);
    }
}

void check_complete(struct world *world, struct sim_node *node, const struct member_result *result)
{
    if (!node->waiting) {
        sim_fail(world, "n%u: a merge completes that was not begun", node->rank);
    }
    if (result->rc < 0) {
        if (!explained(world, node, result->rc)) {
            sim_fail(world, "promise 5: a merge of n%u ends with %s: %s", node->rank,
                     solo_error_name(result->rc), node->member->text);
        }
        return;
    }
    if (result->outcome == SOLO_REJOINED) {
        world->rejoins++;
        return;
    }
    struct attempt *attempt = attempt_of(world, &node->member->committed);
    const struct round *round = &node->member->round;
    if (attempt && round->weights[round->slot] > 0 && !world->excused &&
        node->committed_steps != node->steps_done) {
        sim_fail(world, "promise 4: n%u merged, but its steps are in no committed round",
                 node->rank);
    }
}

/* No fault has an effect any more. */
static bool calm(const struct world *world)
{
    if (world->fault_count == 0) {
        return true;
    }
    for (uint32_t i = 0; i < world->block_count; i++) {
        if (world->blocks[i].until_us > world->now_us) {
            return false;
        }
    }
    return world->now_us > quiet_us(world);
}

/* The master ends with its job: who was connected then hears of it. */
void check_over(struct world *world)
{
    for (uint32_t i = 1; i <= world->node_count; i++) {
        struct sim_node *node = &world->nodes[i];
        if (world->procs[i].alive && node->member->control == CONTROL_ADMITTED && calm(world)) {
            node->must_end_us = world->now_us + SIM_END_US;
        }
    }
}

static void check_ends(struct world *world)
{
    const struct master *master = world->master;
    for (uint32_t i = 1; i <= world->node_count; i++) {
        const struct sim_node *node = &world->nodes[i];
        if (world->procs[i].alive && !node->over && node->must_end_us &&
            world->now_us > node->must_end_us) {
            sim_fail(world, "promise 5: n%u was not told that the job is over", node->rank);
        }
    }
    bool founders = !master->finished_any || world->linger || !world->procs[SIM_MASTER].alive;
    for (uint32_t i = 0; i < master->node_count; i++) {
        founders = founders || (master->nodes[i].used && master->nodes[i].founder);
    }
    if (founders || !calm(world)) {
        world->orphans_us = 0;
    } else if (world->orphans_us == 0) {
        world->orphans_us = world->now_us;
    } else if (world->now_us > world->orphans_us + SIM_END_US && !world->over) {
        sim_fail(world, "promise 5: the founders have finished and the job goes on");
    }
}

/* Promise 5: every wait ends. */
void check_waits(struct world *world)
{
    check_ends(world);
    for (uint32_t i = 1; i <= world->node_count; i++) {
        const struct sim_node *node = &world->nodes[i];
        if (world->procs[i].alive && node->waiting &&
            world->procs[i].stopped_until_us <= world->now_us &&
            world->now_us > node->wait_since_us + 3 * world->timeout_us) {
            sim_fail(world, "promise 5: n%u waits since %.3f s", node->rank,
                     (double)node->wait_since_us / 1e6);
        }
    }
}

void check_end(struct world *world)
{
    for (uint32_t i = 1; i <= world->node_count; i++) {
        const struct sim_node *node = &world->nodes[i];
        if (!world->procs[i].alive) {
            continue;
        }
        if (!node->over) {
            sim_fail(world, "promise 5: n%u did not end", node->rank);
        } else if (world->fault_count == 0 && node->member->founder &&
                   (node->errors > 0 || node->rejoins > 0 ||
                    node->steps_done < node->steps_total)) {
            sim_fail(world,
                     "without any fault n%u ended with %u errors, %u rejoins, %llu of "
                     "%llu steps (rc %d: %s)",
                     node->rank, node->errors, node->rejoins, (unsigned long long)node->steps_done,
                     (unsigned long long)node->steps_total, node->last_rc, node->member->text);
        }
    }
    if (world->fault_count == 0 && world->commits == 0) {
        sim_fail(world, "without any fault no round was committed: nothing was looked at");
    }
    if (world->fault_count == 0 && world->aborts > 0) {
        sim_fail(world, "without any fault %u attempts were aborted", world->aborts);
    }
}
