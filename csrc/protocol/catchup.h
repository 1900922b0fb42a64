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
    uint32_t fetches; /* asked and not here */
    bool up;          /* its link is */
    bool gone;        /* said NO_STATE or was silent: not asked again for this version */
};

struct catchup {
    bool active;   /* a CATCHUP is being done */
    bool adopting; /* all is here: ADOPT is being done */
    bool own;      /* nothing to fetch: ADOPT what this node has */
    bool momentum; /* the outer step keeps one: it is fetched too */
    struct plan plan;
    uint64_t version, digest, job_step;
    uint32_t tries;
    uint32_t donor_count;
    struct catchup_donor donors[MSG_DONORS_MAX];
    uint32_t total, here; /* chunks of both kinds */
    uint32_t next;        /* every chunk before it was asked or is here */
    uint8_t *chunks;      /* per chunk: CHUNK_TO_ASK, CHUNK_HERE, or CHUNK_ASKED + donor */
    uint64_t began_us, progress_us;
};
enum { CHUNK_TO_ASK = 0, CHUNK_HERE = 1, CHUNK_ASKED = 2 };

uint64_t catchup_memory_bytes(const struct plan_model *model);

/* Starts over; donors are then added and told when their links are up. */
void catchup_begin(struct catchup *catchup, const struct msg_catchup *order,
                   const struct plan_model *model, bool momentum, void *memory, uint64_t now_us);
void catchup_donor(struct catchup *catchup, uint32_t peer, bool up);
void catchup_link(struct catchup *catchup, uint32_t peer, bool up); /* lost: asks others */
bool catchup_awaits(const struct catchup *catchup, uint32_t peer, const struct frame *frame);
/* A STATE frame that catchup_awaits: true, and it is taken. */
bool catchup_received(struct catchup *catchup, uint32_t peer, const struct frame *frame,
                      uint64_t now_us);
void catchup_no_state(struct catchup *catchup, uint32_t peer);
void catchup_silent(struct catchup *catchup); /* gives up the donors that owe chunks */
/* Asks for what may be asked; ADOPT when all is here. False: no donor is left. */
bool catchup_pump(struct catchup *catchup, struct out *out);

#endif
