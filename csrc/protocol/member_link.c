/* Who the other nodes are, the data links to them, and the frames that come over these. */
#include "protocol/member_parts.h"

#define TRIES_UNTOLD 1u /* a peer that starts at this moment may refuse once */

/* ---- the table ---------------------------------------------------------------------------- */

static uint32_t find(const struct member *member, uint64_t instance, uint32_t hint)
{
    if (hint < SOLO_MEMBERS_MAX && member->peers[hint].used &&
        member->peers[hint].instance == instance) {
        return hint;
    }
    for (uint32_t i = 0; i < member->peer_count; i++) {
        if (member->peers[i].used && member->peers[i].instance == instance) {
            return i;
        }
    }
    return NOBODY;
}

static uint32_t add(struct member *member)
{
    for (uint32_t i = 0; i < SOLO_MEMBERS_MAX; i++) {
        if (!member->peers[i].used) {
            member->peers[i] = (struct peer){.used = true, .round_slot = NOBODY};
            member->peer_count = i >= member->peer_count ? i + 1 : member->peer_count;
            return i;
        }
    }
    return NOBODY; /* cannot be: MEMBERS has at most SOLO_MEMBERS_MAX rows, one is our own */
}

int member_peer_of(const struct member *member, uint32_t node_rank, uint64_t instance)
{
    uint32_t peer = find(member, instance, NOBODY);
    return peer != NOBODY && member->peers[peer].node_rank == node_rank ? (int)peer : -1;
}

uint32_t links_peer_of_rank(const struct member *member, uint32_t node_rank)
{
    for (uint32_t i = 0; i < member->peer_count; i++) {
        if (member->peers[i].used && member->peers[i].node_rank == node_rank) {
            return i;
        }
    }
    return NOBODY;
}

static void connect_peer(struct member *member, uint32_t index, struct out *out)
{
    member->peers[index].link = LINK_CONNECTING;
    out_add_peer(out, ACTION_CONNECT, index, 0);
}

/* The frames of a link end with it. */
static void lost(struct member *member, uint32_t index, enum fault_kind kind, const char *text,
                 struct out *out)
{
    struct peer *peer = &member->peers[index];
    peer->serves = 0;
    if (member->state == MEMBER_IN_ROUND && peer->round_slot != NOBODY && !merge_applying(member)) {
        bool needed = round_needs(&member->round, peer->round_slot);
        round_link(&member->round, peer->round_slot, false);
        if (needed) {
            merge_fault(member, kind, peer->node_rank, text, out);
        }
    }
    if (member->catchup.active) {
        catchup_link(&member->catchup, index, false);
    }
}

static void forget(struct member *member, uint32_t index, struct out *out)
{
    struct peer *peer = &member->peers[index];
    if (peer->link == LINK_IS_UP || peer->link == LINK_CONNECTING) {
        out_add_peer(out, ACTION_CLOSE, index, 0);
    }
    lost(member, index, FAULT_LINK, "it is no longer a member", out);
    if (member->catchup.active) {
        catchup_no_state(&member->catchup, index);
    }
    peer->used = false;
}

static void take_row(struct member *member, const struct msg_member *row, uint32_t slot,
                     uint8_t *named, struct out *out)
{
    bool own = row->identity.instance == member->config.identity.instance;
    uint32_t hint = slot != NOBODY ? member->slot_peers[slot] : NOBODY;
    if (slot != NOBODY) {
        member->slot_ranks[slot] = row->identity.node_rank;
        member->device_counts[slot] = row->identity.device_count;
        member->slot_peers[slot] = ROUND_SELF;
    }
    if (own) {
        member->listed = member->listed || slot != NOBODY;
        member->slot = slot != NOBODY ? slot : member->slot; /* a second row takes no slot away */
        member->founder = row->founder;
        return;
    }
    uint32_t index = find(member, row->identity.instance, hint);
    index = index == NOBODY ? add(member) : index;
    if (index == NOBODY) {
        return;
    }
    struct peer *peer = &member->peers[index];
    peer->node_rank = row->identity.node_rank;
    peer->instance = row->identity.instance;
    text_copy(peer->name, sizeof peer->name, row->identity.name);
    text_copy(peer->address, sizeof peer->address, row->identity.address);
    peer->wanted = member->config.identity.node_rank < peer->node_rank;
    named[index] = 1;
    if (slot != NOBODY) {
        member->slot_peers[slot] = index;
    }
    if (peer->wanted && peer->link == LINK_NONE) {
        connect_peer(member, index, out);
    }
}

static void tell_gone(const struct msg_members *members, struct out *out)
{
    for (uint32_t i = 0; i < members->gone_count; i++) {
        const struct msg_gone *gone = &members->gone[i];
        struct event *event = out_event(out, gone->goodbye ? EVENT_LEFT : EVENT_LOST);
        event->rank = gone->node_rank;
        text_copy(event->text, sizeof event->text, gone->text);
    }
}

void links_members(struct member *member, const struct msg_members *members, struct out *out)
{
    uint8_t named[SOLO_MEMBERS_MAX] = {0};
    /* Who is gone makes room first: the rows that stay are marked, the others forgotten. */
    for (uint32_t i = 0; i < members->count; i++) {
        uint32_t hint = i < member->listed_count ? member->slot_peers[i] : NOBODY;
        uint32_t index = find(member, members->rows[i].identity.instance, hint);
        if (index != NOBODY) {
            named[index] = 1;
        }
    }
    for (uint32_t i = 0; i < member->peer_count; i++) {
        if (member->peers[i].used && !named[i]) {
            forget(member, i, out);
        }
    }
    tell_gone(members, out);
    member->epoch = members->epoch;
    member->listed_count = members->listed_count;
    member->job_step = members->job_step;
    member->listed = false;
    member->slot = NOBODY;
    for (uint32_t i = 0; i < members->count; i++) {
        take_row(member, &members->rows[i], i < members->listed_count ? i : NOBODY, named, out);
    }
    out_add(out, ACTION_RECHECK);
    if (member->catchup.active) {
        state_go_on(member, out);
    }
}

/* ---- links -------------------------------------------------------------------------------- */

void links_up(struct member *member, uint32_t index, struct out *out)
{
    if (index >= SOLO_MEMBERS_MAX || !member->peers[index].used) {
        return;
    }
    struct peer *peer = &member->peers[index];
    peer->link = LINK_IS_UP;
    peer->failures = 0;
    if (merge_exchanging(member) && peer->round_slot != NOBODY) {
        round_link(&member->round, peer->round_slot, true);
        merge_go_on(member, out);
    }
    if (member->catchup.active) {
        catchup_link(&member->catchup, index, true);
        state_go_on(member, out);
    }
}

void links_down(struct member *member, uint32_t index, enum fault_kind kind, const char *text,
                struct out *out)
{
    if (index >= SOLO_MEMBERS_MAX || !member->peers[index].used ||
        member->peers[index].link == LINK_NONE || member->peers[index].link == LINK_WAITING) {
        return;
    }
    struct peer *peer = &member->peers[index];
    if (peer->link == LINK_IS_UP) {
        struct event *event = out_event(out, EVENT_PEER_LOST);
        event->rank = peer->node_rank;
        text_copy(event->text, sizeof event->text, text);
    }
    bool was_up = peer->link == LINK_IS_UP;
    if (!was_up && peer->failures == TRIES_UNTOLD) {
        struct event *event = out_event(out, EVENT_UNREACHED);
        event->rank = peer->node_rank;
        struct text line = text_of(event->text, sizeof event->text);
        text_add(&line, peer->address);
        text_add(&line, ": ");
        text_add(&line, text);
    }
    peer->link = peer->wanted ? LINK_WAITING : LINK_NONE;
    peer->retry_us = member->now_us + member_backoff_us(member, peer->failures++);
    if (peer->wanted && peer->retry_us < member->links_wake_us) {
        member->links_wake_us = peer->retry_us;
    }
    if (was_up) {
        lost(member, index, kind, text, out);
    }
    if (member->catchup.active) {
        state_go_on(member, out);
    }
}

void links_tick(struct member *member, struct out *out)
{
    if (member->now_us < member->links_wake_us) {
        return;
    }
    member->links_wake_us = UINT64_MAX;
    for (uint32_t i = 0; i < member->peer_count; i++) {
        struct peer *peer = &member->peers[i];
        if (!peer->used || peer->link != LINK_WAITING) {
            continue;
        }
        if (member->now_us >= peer->retry_us) {
            connect_peer(member, i, out);
        } else if (peer->retry_us < member->links_wake_us) {
            member->links_wake_us = peer->retry_us;
        }
    }
}

void links_close(struct member *member, struct out *out)
{
    for (uint32_t i = 0; i < member->peer_count; i++) {
        struct peer *peer = &member->peers[i];
        if (peer->used && (peer->link == LINK_IS_UP || peer->link == LINK_CONNECTING)) {
            out_add_peer(out, ACTION_CLOSE, i, 0);
        }
        peer->used = false;
    }
    member->links_wake_us = UINT64_MAX;
}

/* ---- data frames -------------------------------------------------------------------------- */

static struct round_id id_of(const struct frame *frame)
{
    return (struct round_id){frame->epoch, frame->round, frame->attempt};
}

/* < 0: of an attempt before the one this member is, or was last, in; > 0: of a later one. */
static int compare(struct round_id frame, struct round_id own)
{
    int epochs = epoch_compare(frame.epoch, own.epoch);
    if (epochs != 0) {
        return epochs;
    }
    if (frame.round != own.round) {
        return frame.round < own.round ? -1 : 1;
    }
    return frame.attempt == own.attempt ? 0 : frame.attempt < own.attempt ? -1 : 1;
}

enum round_take member_take(const struct member *member, uint32_t index, const struct frame *frame)
{
    if (index >= SOLO_MEMBERS_MAX || !member->peers[index].used) {
        return TAKE_DROP;
    }
    if (frame->type == FRAME_STATE) {
        return catchup_awaits(&member->catchup, index, frame) ? TAKE_HERE : TAKE_DROP;
    }
    if (frame->type != FRAME_DELTA && frame->type != FRAME_MEAN) {
        return TAKE_FAULT;
    }
    int order = compare(id_of(frame), member->round.id);
    if (order > 0) {
        return epoch_compare(frame->epoch, member->epoch) < 0 ? TAKE_DROP : TAKE_LATER;
    }
    if (order < 0 || !merge_exchanging(member)) {
        return TAKE_DROP;
    }
    uint32_t slot = member->peers[index].round_slot;
    return slot == NOBODY ? TAKE_FAULT
                          : round_take(&member->round, slot, frame->type, frame->chunk);
}

static void broken(struct member *member, uint32_t index, struct out *out)
{
    out_add_peer(out, ACTION_CLOSE, index, 0);
    links_down(member, index, FAULT_CORRUPT, "a payload's checksum is wrong", out);
}

void links_received(struct member *member, const struct member_event *event, struct out *out)
{
    uint32_t index = event->peer;
    const struct frame *frame = event->frame;
    if (index >= SOLO_MEMBERS_MAX || !member->peers[index].used) {
        return;
    }
    if (!event->ok) {
        broken(member, index, out);
    } else if (frame->type == FRAME_FETCH) {
        state_fetch(member, index, frame, out);
    } else if (frame->type == FRAME_NO_STATE) {
        if (member->catchup.active && frame->round == member->catchup.version) {
            catchup_no_state(&member->catchup, index);
            state_go_on(member, out);
        }
    } else if (frame->type == FRAME_STATE) {
        if (catchup_received(&member->catchup, index, frame, event->now_us)) {
            state_go_on(member, out);
        }
    } else if (member_take(member, index, frame) == TAKE_HERE) {
        merge_note(member, event);
        round_received(&member->round, member->peers[index].round_slot, frame->type, frame->chunk,
                       out);
        merge_go_on(member, out);
    }
}

void links_sent(struct member *member, const struct member_event *event, struct out *out)
{
    uint32_t index = event->peer;
    const struct frame *frame = event->frame;
    if (index >= SOLO_MEMBERS_MAX || !member->peers[index].used) {
        return;
    }
    struct peer *peer = &member->peers[index];
    if (frame->type == FRAME_STATE) {
        peer->serves -= peer->serves > 0;
    } else if (merge_exchanging(member) && peer->round_slot != NOBODY &&
               round_id_equal(id_of(frame), member->round.id)) {
        member->round.progress_us = event->now_us;
        round_sent(&member->round, peer->round_slot, frame->type);
        merge_go_on(member, out);
    }
}
