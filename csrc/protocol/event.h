/* event.h - what happened, typed, for events.jsonl, logs and messages. Both machines (member.h
 * and master.h) report with it; node/ writes it as one JSON object. */
#ifndef SOLO_PROTOCOL_EVENT_H
#define SOLO_PROTOCOL_EVENT_H

#include "wire/msg.h"

enum event_kind {
    EVENT_JOINED,      /* rank came into the member list; text: "founder", "joiner" or "rejoined" */
    EVENT_LEFT,        /* said goodbye; text: its reason; rc 0: finished */
    EVENT_LOST,        /* connection or lease ended, or was dropped; rc and text: why */
    EVENT_REFUSED,     /* rc, text as it was told */
    EVENT_BEGIN,       /* round, attempt, member_count */
    EVENT_COMMITTED,   /* round = version, attempt, member_count, contributor_count, digest, bytes;
                          wait_us: first READY to BEGIN; us: BEGIN to the last DONE; apply_us:
                          the slowest member's for the round before; steps_millionths: by so
                          many steps the anchor has moved: the contributors' weighted mean */
    EVENT_ABORTED,     /* rank: on whose account; text: why */
    EVENT_NONFINITE,   /* rank left out of this round; text: the tensor */
    EVENT_TWINS,       /* rank and other_rank sent equal deltas; a member: as text */
    EVENT_ODD,         /* rank's anchor or mean differs from the others': it is resynced */
    EVENT_SUMMONED,    /* rank is asked to merge early */
    EVENT_ALONE,       /* rank is the only member now */
    EVENT_WAITING,     /* fewer than min_nodes: text */
    EVENT_SETTLED,     /* master restarted: version, member_count; text: how */
    EVENT_STATE_LOST,  /* nobody holds version `version` any more */
    EVENT_CAUGHT_UP,   /* rank holds version; us: how long it took; bytes */
    EVENT_MASTER_LOST, /* member: text: why */
    EVENT_MASTER_FOUND, /* member */
    EVENT_DROPPED,      /* member: the master goes on without it; text: as it was told */
    EVENT_PEER_LOST,    /* member: link to rank; text */
    EVENT_UNREACHED,    /* member: rank cannot be connected to; text: its address, and why */
    EVENT_DONOR_LOST,   /* member: rank */
    EVENT_REJOINED,     /* member: fell out and came back at version; its last interval is lost */
    EVENT_OVER,         /* rc, text */
    EVENT_KIND_COUNT,
};

#define EVENT_NOBODY UINT32_MAX

struct event {
    enum event_kind kind;
    uint32_t rank, other_rank; /* EVENT_NOBODY: none */
    uint32_t member_count, contributor_count;
    struct round_id id;
    uint64_t version, digest, bytes, us, wait_us, apply_us;
    uint64_t steps_millionths;
    int rc;
    char text[MSG_REASON_MAX];
};

const char *event_kind_name(enum event_kind kind); /* "joined", "committed" ... */

struct event *event_blank(struct event *event, enum event_kind kind); /* of nobody */

#endif
