/* round.h - one attempt at a round as a member sees it: what to encode next, what to send to
 * whom, what has come, and when the whole mean is here.
 *
 * Chunks go in waves: the k-th chunk of every owner, beginning with the owner after this
 * member's slot, so that no owner gets everything at once; among more than two deltas go before
 * means. A member is at most plan.window chunks of an owner ahead of that owner's means,
 * which bounds what an owner has to park. Fields are read-only for the driver. */
#ifndef SOLO_PROTOCOL_ROUND_H
#define SOLO_PROTOCOL_ROUND_H

#include "protocol/action.h"
#include "protocol/plan.h"
#include "protocol/shard.h"

#define ROUND_ENCODED_MAX 64u   /* chunks between ENCODE and their SENT: encode buffers */
#define ROUND_SENDS_MAX   32u   /* DELTA and MEAN sends in flight to one peer */
#define ROUND_SENDS_MIN   8u    /* the same in a large job: */
#define ROUND_SENDS_LOW   4u    /* fewer to one peer: its link is about to run dry */
#define ROUND_SENDS_ALL   1024u /* sends in flight to all */

enum round_phase {
    ROUND_IDLE, /* none */
    ROUND_EXCHANGING,
    ROUND_DONE,     /* DONE was sent: the verdict is awaited, in doubt if the master is lost */
    ROUND_APPLYING, /* COMMIT came: ACTION_APPLY is being done */
};

struct round_slot {
    uint32_t encode_next; /* which of this owner's chunks my delta is encoded for next */
    uint32_t sends;       /* to it: from ENCODE or SEND_MEAN until SENT */
    uint32_t deltas;      /* of these, DELTA: half of those allowed at most, so that a mean goes out
                             as soon as it is there, and the other side can go on */
    uint32_t mean_next;   /* which of my own chunks' means goes to it next */
    uint32_t means;       /* of this owner, here; own slot: reduced */
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
    uint32_t encoded;    /* chunks for others between ENCODE and SENT */
    uint32_t turn;       /* the slot at which the search for the next chunk to encode begins */
    uint32_t mean_count; /* here, of all owners */
    uint32_t zero_next;  /* nobody contributes: next own chunk to reduce from nothing */
    uint64_t job_step;   /* after it */
    uint64_t delta_digest, sent_bytes, received_bytes;
    uint8_t *mean_here; /* bit per chunk */
    uint8_t *reduced;   /* bit per own chunk: its mean may go out */
    struct shard shard;
    uint32_t slot_peers[SOLO_MEMBERS_MAX]; /* index into member->peers; own: ROUND_SELF */
    struct round_slot slots[SOLO_MEMBERS_MAX];
};

uint64_t round_memory_bytes(const struct plan_model *model);

/* Begins an attempt; then tell it the links that are up, and pump. */
void round_begin(struct round *round, const struct msg_begin *begin, const struct plan_model *model,
                 uint32_t slot, void *memory, uint64_t now_us);
void round_link(struct round *round, uint32_t slot, bool up);
void round_encoded(struct round *round, uint32_t chunk, struct out *out);
void round_sent(struct round *round, uint32_t slot, enum frame_type type);
void round_reduced(struct round *round, uint32_t chunk);
/* A frame of this attempt from this slot; it was TAKE_HERE, or nothing happens. */
void round_received(struct round *round, uint32_t slot, enum frame_type type, uint32_t chunk,
                    struct out *out);
/* Gives out what may be encoded, sent and reduced now; after any of the above. */
void round_pump(struct round *round, struct out *out);
bool round_whole(const struct round *round); /* the whole mean is here */
/* Chunks are still owed to or by this slot: losing its link means that the attempt fails. */
bool round_needs(const struct round *round, uint32_t slot);
/* Who keeps this member waiting: a bit per slot; returns how many. */
uint32_t round_owed(const struct round *round, uint8_t *owed);

/* How a data frame that has only shown its header is to be taken. */
enum round_take {
    TAKE_HERE,  /* now: a DELTA is parked, a MEAN goes to its place */
    TAKE_LATER, /* of an attempt that BEGIN has not announced yet: leave it unread; RECHECK says
                   when to ask again */
    TAKE_DROP,  /* of an attempt that is over, or fenced: skip the payload */
    TAKE_FAULT, /* no honest peer sends it: close the link */
};
enum round_take round_take(const struct round *round, uint32_t slot, enum frame_type type,
                           uint32_t chunk);

#endif
