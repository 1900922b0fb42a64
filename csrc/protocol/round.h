/* round.h - one attempt at a round as a member sees it: what to encode next, what to send to
 * whom, what has come, and when the whole mean is here.
 *
 * Chunks go in waves: the k-th chunk of every owner, beginning with the owner after this
 * member's slot, so that no owner gets everything at once and means flow back while deltas
 * still go out. A member is at most plan.window chunks of an owner ahead of that owner's means,
 * which bounds what an owner has to park. Fields are read-only for the driver. */
#ifndef SOLO_PROTOCOL_ROUND_H
#define SOLO_PROTOCOL_ROUND_H

#include "protocol/action.h"
#include "protocol/plan.h"
#include "protocol/shard.h"

#define ROUND_ENCODED_MAX 16u /* chunks between ENCODE and their SENT: encode buffers */
#define ROUND_SENDS_MAX   8u  /* DELTA and MEAN sends in flight to one peer */

enum round_phase {
    ROUND_IDLE, /* none */
    ROUND_EXCHANGING,
    ROUND_DONE,     /* DONE was sent: the verdict is awaited, in doubt if the master is lost */
    ROUND_APPLYING, /* COMMIT came: ACTION_APPLY is being done */
};

struct round_slot {
    uint32_t peer;        /* index into member->peers; own slot: ROUND_SELF */
    uint32_t encode_next; /* k of the next chunk of this owner to encode */
    uint32_t sends;       /* in flight */
    uint32_t mean_next;   /* k of my next own chunk whose mean goes to this slot */
    uint32_t means;       /* means of this owner that are here, from its first on, any order */
    bool up;              /* its link is */
};
#define ROUND_SELF UINT32_MAX

struct round {
    struct round_id id;
    enum round_phase phase;
    uint64_t version; /* base */
    struct plan plan;
    uint32_t count, slot; /* members, own slot */
    uint64_t weights[SOLO_MEMBERS_MAX], weight_sum;
    uint32_t contributors;
    double lr_sum, steps;
    uint64_t mean_digest;
    uint64_t began_us, progress_us, done_us, stall_us;
    uint32_t encoded;      /* chunks between ENCODE and SENT */
    uint32_t turn;         /* where the search for the next chunk to encode goes on */
    uint32_t mean_count;   /* means here */
    uint32_t reduced_next; /* not used by drivers */
    uint8_t *mean_here;    /* bit per chunk */
    uint8_t *queue;        /* bit per own chunk: reduced, mean may go out */
    struct shard shard;
    struct round_slot slots[SOLO_MEMBERS_MAX];
};

uint64_t round_memory_bytes(const struct plan_model *model);

/* How a data frame that has only shown its header is to be taken. */
enum round_take {
    TAKE_HERE,  /* now: a DELTA is parked, a MEAN goes to its place */
    TAKE_LATER, /* of an attempt that BEGIN has not announced yet: leave it unread; RECHECK says
                   when to ask again */
    TAKE_DROP,  /* of an attempt that is over, or fenced: skip the payload */
    TAKE_FAULT, /* no honest peer sends it: close the link */
};

#endif
