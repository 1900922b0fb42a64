/* catchup.h - taking an anchor and its momentum from several donors at once, and serving them.
 *
 * The joiner asks each donor for CATCHUP_FETCHES_MAX chunks at a time; whoever is faster gives
 * more. What a lost donor owed is asked of another. Once all chunks are here the whole is
 * hashed and compared with the digest that the master named: a donor's silent error is found
 * before the anchor is taken. */
#ifndef SOLO_PROTOCOL_CATCHUP_H
#define SOLO_PROTOCOL_CATCHUP_H

#include "protocol/action.h"
#include "protocol/plan.h"

#define CATCHUP_FETCHES_MAX 4u /* asked of one donor and not yet here */
#define CATCHUP_SERVES_MAX  8u /* being sent to one joiner: it may not ask for more */
#define CATCHUP_TRIES_MAX   3u /* whole transfers whose digest was wrong */

struct catchup_donor {
    uint32_t peer;
    uint32_t fetches; /* in flight */
    bool usable;      /* link up, holds the version */
    bool gone;        /* said NO_STATE, or was lost: not asked again for this version */
};

struct catchup {
    bool active, adopting, own;
    struct plan plan;
    bool momentum; /* the job has an outer momentum: kind STATE_MOMENTUM is fetched too */
    uint64_t version, digest, job_step;
    uint32_t tries;
    uint32_t donor_count;
    struct catchup_donor donors[MSG_DONORS_MAX];
    uint32_t total, here; /* chunks of all kinds */
    uint32_t next;        /* no chunk before it is still to be asked */
    uint8_t *chunk;       /* per chunk: 0 to ask, 1 here, 2 + donor asked */
    uint64_t began_us, progress_us;
};

/* Chunk number among all: the anchor's, then the momentum's (of the sections that have one). */
uint32_t catchup_total(const struct plan *state_plan, bool momentum);
uint64_t catchup_memory_bytes(const struct plan_model *model);

#endif
