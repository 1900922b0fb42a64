/* job.h - the bytes of one node's merges: anchor, momentum, residuals, and the areas of the
 * round in progress. The only place where the number of a chunk becomes an address.
 *
 * A round: job_begin; for each chunk job_encode (ours), then at the owner, when all members'
 * chunks are there, job_reduce; of others' chunks job_take_mean. Both take the outer step at once,
 * while the mean is in the cache, into the next anchor beside the one held. After COMMIT job_apply
 * until it is done: the next anchor goes to the caller's tensors and takes the place of the old
 * one. Nothing but job_apply changes anchor, momentum, residuals or the caller's tensors, so a
 * round may be begun again at any time before.
 *
 * What waits for a link, or for others, waits in one of these: `inbox` (the other members' encoded
 * chunks of the shard we own), `mean` (encoded means of that shard; with a lossy codec every
 * chunk's), and with a plain codec the next anchor itself: an encoded delta of ours waits there
 * where the mean will be, which the owner sends only after it has it, and a mean where the anchor
 * will be that it is turned into. Over shared memory nothing has to wait: chunks are made in the
 * link's memory (`room` below) and used where they came.
 *
 * Threads: one at a time (the loop thread; job_open before it). Peers' bytes are judged by
 * job_take_*; sizes are judged by job_room_* before a byte is received. */
#ifndef SOLO_NODE_JOB_H
#define SOLO_NODE_JOB_H

#include <stdbool.h>

#include "codec/codec.h"
#include "kernels/digest.h"
#include "node/layout.h"
#include "node/rule.h"
#include "os/area.h"
#include "protocol/plan.h"

#define JOB_BLOCK_ELEMENTS 65536u /* unit of job_apply and of the anchor's digest */
/* Chunks are worked off in tiles that stay in the first level cache from one pass to the next: a
 * multiple of VEC_BLOCK, whose encodings are multiples of DIGEST_PART_BYTES in every codec. */
#define JOB_TILE_ELEMENTS 4096u

struct job_round {
    struct plan plan;
    uint32_t slot;
    float weights[SOLO_MEMBERS_MAX]; /* n_i / sum of n */
    struct rule_step step;
    bool keep_residuals; /* false: the members have changed since the last committed round */
};

struct job_config {
    const char *codec;
    struct rule rule;
};

struct job {
    struct layout layout;
    const struct codec *codec;
    struct rule rule;
    struct area theta, integers, momentum; /* the anchor */
    struct area residual, owner_residual;  /* lossy codecs only; section A */
    struct area inbox, mean;
    struct area next_theta, next_integers, next_momentum; /* the round's, or one that is fetched */
    uint64_t digest;                                      /* of the anchor */
    bool has_anchor;
    void *const *data; /* the caller's tensors, borrowed while a merge is in flight */
    struct plan state_plan;
    uint64_t blocks[LAYOUT_SECTIONS + 1]; /* first JOB_BLOCK_ELEMENTS block of each section */
    struct job_round round;
    uint32_t own_first, own_count; /* chunks that this node owns in the round */
    uint64_t *offsets;             /* chunk -> byte in `mean`; chunk_count + 1 of them */
    uint32_t offset_capacity;
    uint64_t mean_digest;
    uint64_t delta_digest;   /* of our deltas' first tiles: equal ones are found by it */
    uint64_t *block_digests; /* of the next anchor, where the round's chunks are its blocks */
    struct digest step_digest, step_momentum_digest; /* of the chunk that is stepped */
    uint64_t apply_block;                            /* next block to apply */
    uint64_t apply_digest;
    uint64_t walk_block; /* the same of a walk through values */
    uint64_t walk_digest;
    bool stream;                /* larger than the caches: what is written passes them */
    struct codec_piece *pieces; /* one block's worth, at most a piece per tensor */
    struct job_tiles *tiles;    /* job_inside.h */
    uint8_t *scratch[2];        /* encoded blocks */
    struct {
        uint32_t chunk, slot;
        const uint8_t *at; /* NULL: none */
    } made, lent; /* a chunk in a link's memory: of ours, not sent yet; of a member, not kept */
};

/* Takes the layout, also on an error. */
int job_open(struct job *job, struct layout *layout, const struct job_config *config);
void job_close(struct job *job);
/* Reserves and touches what a round of two members needs: seconds for a large model (a huge page that
 * the host has to find takes 4 ms), which nobody has to wait for in the first rounds then. Call it
 * before the first round. */
int job_warm(struct job *job);
/* Bytes that job_open and the first round allocate. */
uint64_t job_bytes(const struct layout *layout, const struct job_config *config);

/* ---- the anchor ------------------------------------------------------------------------ */
uint64_t job_hash(const struct job *job); /* the digest, calculated anew */

/* Walks through all of it, one at a time, a block a call; true: it was the last. */
void job_walk_drop(struct job *job);                      /* the one under way is not finished */
bool job_take_values(struct job *job, void *const *data); /* the caller's values, momentum 0 */
bool job_give_values(struct job *job, void *const *data); /* the anchor into the caller's */
bool job_fetch_hash(struct job *job);                     /* of what was fetched: walk_digest */

/* ---- a round --------------------------------------------------------------------------- */
/* Borrows `data` until the next job_begin or the end of job_apply. */
int job_begin(struct job *job, const struct job_round *round, void *const *data);

uint32_t job_chunk_bytes(const struct job *job, uint32_t chunk); /* encoded */
bool job_owns(const struct job *job, uint32_t chunk);

/* Our chunk for another owner, to `room` (job_chunk_bytes of a link) or, if that is NULL, to where
 * it waits. What we own ourselves is encoded by job_reduce: here nothing happens then.
 * SOLO_ENONFINITE: the text names the tensor. */
int job_encode(struct job *job, uint32_t chunk, void *room);
const void *job_delta(const struct job *job, uint32_t chunk, uint32_t *size_out);

/* Where the chunk of a member's delta goes. SOLO_EPEER: we do not own it, or a wrong size. */
int job_room_delta(struct job *job, uint32_t slot, uint32_t chunk, uint32_t size, void **out);
/* Whether deltas are not needed any more once they are summed, and so may stay in the link. */
bool job_lends(const struct job *job);
/* It is at `bytes`: there, or in a link's memory until job_reduce or job_keep. SOLO_EPEER: rubbish */
int job_take_delta(struct job *job, uint32_t slot, uint32_t chunk, const void *bytes);
/* All deltas are there. The mean to `room` (NULL: to where it waits), and the outer step. */
int job_reduce(struct job *job, uint32_t chunk, void *room);
const void *job_mean(const struct job *job, uint32_t chunk, uint32_t *size_out);

int job_room_mean(struct job *job, uint32_t chunk, uint32_t size, void **out);
/* It is at `bytes`: there, or in a link's memory during the call. */
int job_take_mean(struct job *job, uint32_t chunk, const void *bytes);

/* What lies in a link's memory and was not sent or summed from there goes to where it waits: the
 * link's memory is not used any more. */
void job_keep(struct job *job);
void job_made_sent(struct job *job); /* a chunk made in `room` went out: there is nothing to keep */
void job_link_gone(struct job *job); /* nor is there: that memory is gone */

/* ---- after COMMIT ---------------------------------------------------------------------- */
void job_apply_begin(struct job *job);
/* One block; true: it was the last, the next anchor is the anchor, and job->digest its. */
bool job_apply(struct job *job);

/* ---- serving and fetching an anchor ---------------------------------------------------- */
/* A chunk of state_plan, of the anchor or its momentum (which sections C and D have not: size
 * 0). Valid until job_apply or job_fetch_end. */
const void *job_state(const struct job *job, uint32_t chunk, bool momentum, uint32_t *size_out);
/* Fetches go beside the anchor held, so that it is lost to nobody: no round meanwhile. */
int job_room_state(struct job *job, uint32_t chunk, bool momentum, uint32_t size, void **out);
/* All chunks are there and hashed: their digest. They become the anchor if it is `wanted` (0:
 * unknown). */
uint64_t job_fetch_end(struct job *job, uint64_t wanted);

#endif
