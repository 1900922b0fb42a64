/* The member list: who is in it, in which slot, and when a new epoch of it is told. */
#include "protocol/master_parts.h"

#define NO_SLOT UINT32_MAX

static void change(struct master *master, uint64_t pause_us)
{
    uint64_t due_us = master->now_us + pause_us;
    if (!master->relist || due_us < master->relist_us) {
        master->relist_us = due_us;
    }
    master->relist = true;
}

void list_add(struct master *master, struct node *node, struct master_out *out)
{
    bool fetched = node->donor_count > 0;
    node->listed = true;
    node->standing = STANDING_MEMBER;
    node->slot = NO_SLOT;
    node->partial = master->begun && fetched;
    node->donor_count = 0;
    if (!(node->owed & (OWE_DOUBT_COMMIT | OWE_DOUBT_ABORT))) {
        node->doubt.round = 0;
    }
    master->listed_count++;
    change(master, MASTER_GATHER_US);
    struct event *event = master_event_add(out, EVENT_JOINED, node->identity.node_rank);
    event->version = master->version;
    event->member_count = master->listed_count;
    text_copy(event->text, sizeof event->text,
              node->returning ? "rejoined"
              : node->founder ? "founder"
                              : "joiner");
}

void list_remove(struct master *master, struct node *node)
{
    if (node->listed) {
        node->listed = false;
        master->listed_count--;
        change(master, 0);
    }
}

/* ---- the anchor's digest ------------------------------------------------------------------- */

static uint32_t holders_of(const struct master *master, uint64_t digest)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < master->node_count; i++) {
        const struct node *node = &master->nodes[i];
        count += node->used && node->listed && node->held.digest == digest;
    }
    return count;
}

/* The digest that most members hold; of equals, the one of the lowest slot. */
static uint64_t most_held(struct master *master)
{
    uint32_t most = 0, slot = NO_SLOT;
    uint64_t digest = 0;
    EACH_NODE (master, node) {
        if (!node->listed) {
            continue;
        }
        uint32_t count = holders_of(master, node->held.digest);
        if (count > most || (count == most && node->slot < slot)) {
            most = count;
            slot = node->slot;
            digest = node->held.digest;
        }
    }
    return digest;
}

static void resync(struct master *master, struct node *node, struct master_out *out)
{
    struct event *event = master_event_add(out, EVENT_ODD, node->identity.node_rank);
    event->version = master->version;
    event->digest = node->held.digest;
    text_copy(event->text, sizeof event->text,
              "its anchor differs from the others': it fetches theirs");
    list_remove(master, node);
    node->standing = STANDING_JOINING;
}

/* After a commit every member tells the digest of what it has now: once all have, a member that
 * differs is known before it could contribute again. */
void list_confirm(struct master *master, struct master_out *out)
{
    bool settled = master->digest_known;
    EACH_NODE (master, node) {
        if (node->listed && node->held.version != master->version) {
            return; /* still applying */
        }
    }
    if (!settled && master->listed_count > 0) {
        master->digest = most_held(master);
        master->digest_known = true;
    }
    EACH_NODE (master, node) {
        if (node->listed && master->digest_known && node->held.digest != master->digest) {
            resync(master, node, out);
        }
    }
}

/* ---- epochs -------------------------------------------------------------------------------- */

static bool before(const struct node *a, const struct node *b)
{
    return a->slot != b->slot ? a->slot < b->slot : a->identity.node_rank < b->identity.node_rank;
}

/* Members keep their order, so that slots move as little as possible; new ones come last. */
static uint32_t sort_listed(struct master *master, struct node **sorted)
{
    uint32_t count = 0;
    EACH_NODE (master, node) {
        if (!node->listed) {
            continue;
        }
        uint32_t at = count++;
        while (at > 0 && before(node, sorted[at - 1])) {
            sorted[at] = sorted[at - 1];
            at--;
        }
        sorted[at] = node;
    }
    return count;
}

static void add_row(struct msg_members *members, const struct node *node)
{
    members->rows[members->count++] = (struct msg_member){
        .identity = node->identity, .listed = node->listed, .founder = node->founder};
}

static void add_gone(struct master *master)
{
    struct msg_members *members = &master->members;
    uint32_t news = master->left_count - master->left_told;
    members->gone_count = news < MSG_GONE_MAX ? news : MSG_GONE_MAX;
    for (uint32_t i = 0; i < members->gone_count; i++) {
        uint32_t at = master->left_count - members->gone_count + i;
        const struct master_left *left = &master->left[at % MASTER_LEFT_MAX];
        struct msg_gone *gone = &members->gone[i];
        *gone = (struct msg_gone){.node_rank = left->identity.node_rank, .goodbye = left->goodbye};
        text_copy(gone->text, sizeof gone->text, left->why);
    }
    master->left_told = master->left_count;
}

static void rebuild(struct master *master)
{
    struct node *sorted[SOLO_MEMBERS_MAX];
    struct msg_members *members = &master->members;
    members->listed_count = sort_listed(master, sorted);
    members->count = 0;
    for (uint32_t i = 0; i < members->listed_count; i++) {
        sorted[i]->slot = i;
        add_row(members, sorted[i]);
    }
    EACH_NODE (master, node) {
        if (!node->listed) {
            add_row(members, node);
        }
        node->owed |= OWE_MEMBERS;
    }
    members->version = master->version;
    members->job_step = master->job_step;
    members->epoch = master->epoch;
    add_gone(master);
}

static void expect(struct master *master)
{
    if (master->members.listed_count == 0) {
        return; /* those of the last list are waited for */
    }
    master->expect_count = master->members.listed_count;
    master->expect_epoch = master->epoch;
    for (uint32_t i = 0; i < master->expect_count; i++) {
        master->expect_ranks[i] = master->members.rows[i].identity.node_rank;
    }
}

void list_send(struct master *master, struct master_out *out)
{
    bool epoch = master->relist && master->now_us >= master->relist_us;
    if (!epoch && !master->rows_stale) {
        return;
    }
    uint32_t before_count = master->members.listed_count;
    if (master->relist) {
        master->relist = false;
        master->epoch.incarnation = master->highest.incarnation;
        master->epoch.counter++;
    }
    master->rows_stale = false;
    rebuild(master);
    expect(master);
    if (master->members.listed_count == 1 && before_count > 1) {
        struct event *event =
            master_event_add(out, EVENT_ALONE, master->members.rows[0].identity.node_rank);
        event->version = master->version;
        text_copy(event->text, sizeof event->text, "no other node is left: it trains alone");
    }
}
