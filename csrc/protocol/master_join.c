/* Who may come in, who goes, and how a joiner gets the anchor. */
#include "protocol/master_parts.h"

#define ASK_AGAIN_LEASES 3u

/* ---- refusals ------------------------------------------------------------------------------ */

static struct text refuse(uint32_t conn, int rc, uint32_t retry_ms, struct master_out *out)
{
    struct msg *msg = master_send(out, conn, FRAME_REFUSE);
    msg->as.refuse.rc = rc;
    msg->as.refuse.retry_ms = retry_ms;
    master_close(out, conn);
    return text_of(msg->as.refuse.text, sizeof msg->as.refuse.text);
}

static void tell_refused(const struct msg_join *join, struct master_out *out)
{
    const struct msg_refuse *told = &out->msgs[out->msg_count - 1].as.refuse;
    struct event *event = master_event_add(out, EVENT_REFUSED, join->identity.node_rank);
    event->rc = told->rc;
    text_copy(event->text, sizeof event->text, told->text);
}

static void add_node(struct text *text, uint32_t rank, const char *name)
{
    text_add(text, "node ");
    text_add_uint(text, rank);
    if (name && name[0]) {
        text_add(text, " (");
        text_add(text, name);
        text_add(text, ")");
    }
}

static bool differ(const struct master *master, const struct msg_join *join, uint32_t conn, int rc,
                   const char *what, const char *theirs, const char *ours, struct master_out *out)
{
    if (strcmp(theirs, ours) == 0) {
        return false;
    }
    struct text text = refuse(conn, rc, 0, out);
    text_add(&text, what);
    text_add(&text, " differs: ");
    add_node(&text, join->identity.node_rank, join->identity.name);
    text_add(&text, " has \"");
    text_add(&text, theirs);
    text_add(&text, "\", the job has \"");
    text_add(&text, ours);
    text_add(&text, "\" (from node ");
    text_add_uint(&text, master->settings_rank);
    text_add(&text, ")");
    tell_refused(join, out);
    return true;
}

static void layout_text(const struct msg_settings *settings, char *buffer, size_t size)
{
    struct text text = text_of(buffer, size);
    text_add_uint(&text, settings->tensor_count);
    text_add(&text, " tensors, ");
    for (uint32_t i = 0; i < MSG_SECTIONS; i++) {
        text_add(&text, i ? "+" : "");
        text_add_uint(&text, settings->elements[i]);
    }
    text_add(&text, " elements, layout ");
    text_add_hex(&text, settings->layout_hash);
}

static bool settings_differ(const struct master *master, const struct msg_join *join, uint32_t conn,
                            struct master_out *out)
{
    const struct msg_settings *theirs = &join->settings, *ours = &master->settings;
    char their_layout[160], our_layout[160];
    layout_text(theirs, their_layout, sizeof their_layout);
    layout_text(ours, our_layout, sizeof our_layout);
    return differ(master, join, conn, SOLO_EVERSION, "the version of solo", theirs->solo_version,
                  ours->solo_version, out) ||
           differ(master, join, conn, SOLO_EVERSION, "the versions", theirs->versions,
                  ours->versions, out) ||
           differ(master, join, conn, SOLO_EMISMATCH, "the model", their_layout, our_layout, out) ||
           differ(master, join, conn, SOLO_EMISMATCH, "--sync_interval", theirs->interval,
                  ours->interval, out) ||
           differ(master, join, conn, SOLO_EMISMATCH, "--outer", theirs->outer, ours->outer, out) ||
           differ(master, join, conn, SOLO_EMISMATCH, "--codec", theirs->codec, ours->codec, out);
}

/* A process that died has its connection closed by its kernel, so a live connection is a live
 * node: the newcomer is refused, once with the advice to try again, in case the news of the old
 * one's death is still on its way. (Of a machine that lost power there is no news before the lease
 * ends, which is sooner than it has booted.) */
static bool rank_taken(struct master *master, const struct msg_join *join, uint32_t conn,
                       struct master_out *out)
{
    struct node *old = master_node_of_rank(master, join->identity.node_rank);
    if (!old) {
        return false;
    }
    if (old->identity.instance == join->identity.instance) {
        master_close(out, old->conn);
        join_gone(master, old, false, SOLO_ECLOSED, "it came back over another connection", out);
        return false;
    }
    bool again = master->refused_instance == join->identity.instance;
    master->refused_instance = join->identity.instance;
    struct text text = refuse(conn, SOLO_EREFUSED, again ? 0 : 300, out);
    text_add(&text, "node_rank ");
    text_add_uint(&text, join->identity.node_rank);
    text_add(&text, " is held by a live node, ");
    text_add(&text, old->identity.name);
    text_add(&text, " at ");
    text_add(&text, old->identity.address);
    text_add(&text, "; you are ");
    text_add(&text, join->identity.name);
    text_add(&text, " at ");
    text_add(&text, join->identity.address);
    text_add(&text, ": give each node its own --node_rank");
    tell_refused(join, out);
    return true;
}

static struct master_left *left_of(struct master *master, uint32_t rank)
{
    uint32_t kept = master->left_count < MASTER_LEFT_MAX ? master->left_count : MASTER_LEFT_MAX;
    for (uint32_t i = 0; i < kept; i++) {
        struct master_left *left = &master->left[(master->left_count - 1 - i) % MASTER_LEFT_MAX];
        if (left->identity.node_rank == rank) {
            return left;
        }
    }
    return NULL;
}

static bool in_penalty(struct master *master, const struct msg_join *join, uint32_t conn,
                       struct master_out *out)
{
    const struct master_left *left = left_of(master, join->identity.node_rank);
    if (!left || master->now_us >= left->at_us + left->penalty_us) {
        return false;
    }
    uint64_t wait_us = left->at_us + left->penalty_us - master->now_us;
    struct text text = refuse(conn, SOLO_EREFUSED, (uint32_t)(wait_us / 1000) + 1, out);
    text_add(&text, "it was dropped (");
    text_add(&text, left->why);
    text_add(&text, ") and may come back later");
    return true;
}

/* ---- coming in ----------------------------------------------------------------------------- */

static struct node *free_node(struct master *master)
{
    for (uint32_t i = 0; i < MASTER_NODES_MAX; i++) {
        if (!master->nodes[i].used) {
            master->node_count = i >= master->node_count ? i + 1 : master->node_count;
            return &master->nodes[i];
        }
    }
    return NULL;
}

static bool refused(struct master *master, uint32_t conn, const struct msg_join *join,
                    struct master_out *out)
{
    if (strcmp(join->job_id, master->config.job_id) != 0) {
        struct text text = refuse(conn, SOLO_EREFUSED, 0, out);
        text_add(&text, "this is the master of job \"");
        text_add(&text, master->config.job_id);
        text_add(&text, "\", not of \"");
        text_add(&text, join->job_id);
        text_add(&text, "\"");
        tell_refused(join, out);
        return true;
    }
    bool others = false;
    EACH_NODE (master, node) {
        others = true;
    }
    if (!others && !master->founded) {
        master->settings_known = false; /* nobody is bound to them */
    }
    if (join->epoch.incarnation >= MASTER_INCARNATION_MAX) {
        struct text text = refuse(conn, SOLO_EPEER, 0, out);
        text_add(&text, "it tells of a master later than any can be: it is damaged");
        tell_refused(join, out);
        return true;
    }
    if (master->settings_known && settings_differ(master, join, conn, out)) {
        return true;
    }
    return rank_taken(master, join, conn, out) || in_penalty(master, join, conn, out);
}

/* What this connection should be told about the round that was in doubt when the last one
 * ended; while settling that is not known yet. */
static void answer_doubt(struct master *master, struct node *node)
{
    if (node->doubt.round == 0 || master->phase == MASTER_SETTLING ||
        master->phase == MASTER_FOUNDING) {
        return;
    }
    bool commit = round_id_equal(node->doubt, master->committed) &&
                  node->doubt_digest == master->committed_digest &&
                  node->doubt.round == master->version;
    node->owed |= commit ? OWE_DOUBT_COMMIT : OWE_DOUBT_ABORT;
    if (commit) {
        node->standing = STANDING_CATCHING_UP; /* it tells when it has applied it */
        node->asked_us = master->now_us;
        node->held.held = false;
    }
}

/* A member that holds more than we know of was with an earlier master: the highest wins. */
static void take_higher(struct master *master, struct node *newcomer, struct master_out *out)
{
    if (master->phase == MASTER_FOUNDING) {
        master_set_phase(master, MASTER_SETTLING);
        return;
    }
    if (master->phase == MASTER_SETTLING || !newcomer->held.held ||
        newcomer->held.version <= master->version) {
        return;
    }
    if (master->phase == MASTER_EXCHANGING) {
        verdict_abort(master, EVENT_NOBODY, "a node came back with a later version", out);
    }
    EACH_NODE (master, node) {
        list_remove(master, node);
        if (node->standing != STANDING_CATCHING_UP || node != newcomer) {
            node->standing = STANDING_JOINING;
        }
    }
    master->version = newcomer->held.version;
    master->digest = newcomer->held.digest;
    master->job_step = newcomer->held.job_step;
    master->digest_known = true;
    struct event *event = master_event_add(out, EVENT_SETTLED, newcomer->identity.node_rank);
    event->version = master->version;
    text_copy(event->text, sizeof event->text, "a node came back with a later version");
}

void join_message(struct master *master, uint32_t conn, const struct msg_join *join,
                  struct master_out *out)
{
    if (refused(master, conn, join, out)) {
        return;
    }
    struct node *node = free_node(master);
    if (!node) {
        struct text text = refuse(conn, SOLO_ELIMIT, 5000, out);
        text_add(&text, "the job is full: it has ");
        text_add_uint(&text, SOLO_MEMBERS_MAX);
        text_add(&text, " nodes");
        tell_refused(join, out);
        return;
    }
    if (!master->settings_known) {
        master->settings_known = true;
        master->settings = join->settings;
        master->settings_rank = join->identity.node_rank;
    }
    const struct master_left *left = left_of(master, join->identity.node_rank);
    bool was_founder = join->returning
                           ? join->founder
                           : !master->begun || (left && left->founder && !left->finished);
    *node = (struct node){.used = true,
                          .conn = conn,
                          .identity = join->identity,
                          .held = join->held,
                          .live = join->returning,
                          .returning = join->returning,
                          .founder = was_founder,
                          .standing = STANDING_JOINING,
                          .heard_us = master->now_us,
                          .joined_us = master->now_us,
                          .owed = OWE_ADMIT,
                          .doubt = join->doubt,
                          .doubt_digest = join->doubt_digest,
                          .made_by = join->committed,
                          .epoch = join->epoch};
    master->rows_stale = true;
    settle_report(master, join);
    if (join->returning) {
        answer_doubt(master, node);
        take_higher(master, node, out);
    }
}

/* ---- going --------------------------------------------------------------------------------- */

static void remember(struct master *master, const struct node *node, bool goodbye, bool finished,
                     const char *why)
{
    struct master_left *left = &master->left[master->left_count++ % MASTER_LEFT_MAX];
    *left = (struct master_left){.identity = node->identity,
                                 .at_us = master->now_us,
                                 .version = node->held.version,
                                 .goodbye = goodbye,
                                 .finished = finished,
                                 .founder = node->founder};
    text_copy(left->why, sizeof left->why, why);
}

void join_gone(struct master *master, struct node *node, bool goodbye, int rc, const char *why,
               struct master_out *out)
{
    struct node gone = *node;
    bool finished = rc == 0;
    remember(master, &gone, goodbye, finished, why);
    if (finished && (gone.founder || !master->begun)) {
        master->finished_any = true;
    }
    node->used = false;
    master->rows_stale = true;
    if (goodbye) {
        settle_goodbye(master, gone.identity.node_rank);
    }
    if (gone.listed) { /* with fewer members it is another attempt ... */
        list_remove(master, &gone);
        master->attempts = 0;
    }
    if (gone.blame > 0) {
        master->retry_us = 0; /* ... and what failed the last one is gone */
    }
    struct event *event =
        master_event_add(out, goodbye ? EVENT_LEFT : EVENT_LOST, gone.identity.node_rank);
    event->rc = rc;
    event->version = gone.held.version;
    event->member_count = master->listed_count;
    text_copy(event->text, sizeof event->text, why);
    bool in_round = gone.standing == STANDING_EXCHANGING || gone.standing == STANDING_DONE;
    if (master->phase == MASTER_EXCHANGING && in_round) {
        verdict_abort(master, gone.identity.node_rank, why, out);
    }
}

void join_drop(struct master *master, struct node *node, int rc, const char *why,
               struct master_out *out)
{
    const struct master_left *before = left_of(master, node->identity.node_rank);
    uint64_t pause_us = 0;
    if (rc != SOLO_ETIMEDOUT) {
        pause_us = before ? before->penalty_us * 2 : 0;
        pause_us = pause_us < MASTER_PENALTY_US ? MASTER_PENALTY_US : pause_us;
        pause_us = pause_us > MASTER_PENALTY_MAX ? MASTER_PENALTY_MAX : pause_us;
    }
    struct text text = refuse(node->conn, SOLO_EREFUSED, (uint32_t)(pause_us / 1000) + 1, out);
    text_add(&text, "the master dropped this node: ");
    text_add(&text, why);
    join_gone(master, node, false, rc, why, out);
    master->left[(master->left_count - 1) % MASTER_LEFT_MAX].penalty_us = pause_us;
}

/* Founders are whoever came before the first round. If all of them died, whoever is left has
 * taken their place; if one has finished and none is left, so has the job. */
bool join_over(struct master *master)
{
    uint32_t founders = 0, nodes = 0;
    EACH_NODE (master, node) {
        founders += node->founder;
        nodes++;
    }
    if (master->finished_any && (nodes == 0 || (founders == 0 && !master->config.linger))) {
        return true;
    }
    if (founders == 0 && master->begun && !master->finished_any) {
        EACH_NODE (master, node) {
            node->founder = node->listed;
        }
    }
    return false;
}

/* ---- catching up --------------------------------------------------------------------------- */

static bool holds_current(const struct master *master, const struct node *node)
{
    return node->held.held && node->held.version == master->version &&
           node->held.digest == master->digest;
}

void join_order(struct master *master, struct node *node, struct msg_catchup *order)
{
    *order = (struct msg_catchup){.version = master->version,
                                  .digest = master->digest_known ? master->digest : 0,
                                  .job_step = master->job_step,
                                  .founder = node->founder};
    order->own = master->phase == MASTER_FOUNDING || (!node->live && holds_current(master, node));
    if (order->own) {
        return;
    }
    /* Beginning elsewhere for each joiner, so that many do not all ask the same few. */
    uint32_t first = node->identity.node_rank;
    for (uint32_t i = 0; i < master->node_count && order->donor_count < MSG_DONORS_MAX; i++) {
        const struct node *donor = &master->nodes[(first + i) % master->node_count];
        if (donor->used && donor->listed && donor != node && holds_current(master, donor)) {
            order->donors[order->donor_count++] = donor->identity.node_rank;
        }
    }
    node->donor_count = order->donor_count;
}

void join_admit(struct master *master, struct master_out *out)
{
    if (!master->digest_known) {
        return;
    }
    EACH_NODE (master, node) {
        if (node->standing == STANDING_JOINING && node->live && holds_current(master, node)) {
            list_add(master, node, out);
        }
    }
    EACH_NODE (master, node) { /* the others, once there are donors */
        if (node->standing == STANDING_JOINING && master->listed_count > 0) {
            node->standing = STANDING_CATCHING_UP;
            node->owed |= OWE_CATCHUP;
            node->asked_us = master->now_us;
        } else if (node->standing == STANDING_CATCHING_UP &&
                   master->now_us >= node->asked_us + ASK_AGAIN_LEASES * master->config.lease_us) {
            node->owed |= OWE_CATCHUP; /* more donors for who still fetches; who has it tells */
            node->asked_us = master->now_us;
        }
    }
}

static void more_donors(struct master *master)
{
    EACH_NODE (master, node) {
        if (node->standing == STANDING_CATCHING_UP && node->donor_count > 0 &&
            node->donor_count < 4) {
            node->owed |= OWE_CATCHUP;
        }
    }
}

static void catchup_failed(struct master *master, struct node *node, const char *why,
                           struct master_out *out)
{
    node->standing = STANDING_JOINING;
    if (++node->catchups > MASTER_CATCHUPS_MAX) {
        join_drop(master, node, SOLO_EABORTED, why, out);
    }
}

/* A new founding version: the job begins with what this node holds. */
static void founded_by(struct master *master, struct node *node, struct master_out *out)
{
    master->version = node->held.version;
    master->digest = node->held.digest;
    master->job_step = node->held.job_step;
    master->digest_known = master->founded = true;
    master_set_phase(master, MASTER_BETWEEN);
    list_add(master, node, out);
}

void join_caught_up(struct master *master, struct node *node, const struct msg_caught_up *told,
                    struct master_out *out)
{
    if (told->held) {
        node->held = (struct msg_held){true, told->version, told->digest, told->job_step};
        node->live = true;
        node->doubt.round = 0; /* it knows */
    }
    if (node->listed) {
        return; /* after a commit: list_confirm looks at it */
    }
    if (node->standing != STANDING_CATCHING_UP) {
        return;
    }
    if (!told->held) {
        catchup_failed(master, node, told->text, out);
    } else if (master->phase == MASTER_FOUNDING) {
        founded_by(master, node, out);
    } else {
        node->standing = STANDING_JOINING; /* join_admit lists it, or sends it on */
        if (!master->digest_known && master->listed_count == 0 &&
            told->version == master->version) {
            master->digest = told->digest; /* the first of those who applied a round in doubt */
            master->job_step = told->job_step;
            master->digest_known = true;
        }
        if (master->digest_known && holds_current(master, node)) {
            node->catchups = 0;
            if (master->phase == MASTER_BETWEEN) {
                list_add(master, node, out);
                more_donors(master);
            }
        }
    }
}
