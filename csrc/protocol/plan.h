/* plan.h - the model cut in chunks: which elements a chunk holds, who owns it, how long moving
 * it may take. Arithmetic alone; the same on every node.
 *
 * The model is four sections in the order of enum solo_role: SOLO_PARAM, SOLO_EXACT and
 * SOLO_MEAN of 4-byte, SOLO_MAX of 8-byte elements. A chunk never crosses sections, so it is
 * always of one role. */
#ifndef SOLO_PROTOCOL_PLAN_H
#define SOLO_PROTOCOL_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "solo.h"

#define PLAN_SECTIONS           4u
#define PLAN_CHUNK_ELEMENTS_MIN 256u        /* and a multiple of it, so that codec blocks fit */
#define PLAN_CHUNK_ELEMENTS_MAX 262144u     /* 1 MiB of fp32 */
#define PLAN_CHUNK_ELEMENTS     65536u      /* of a round: one second level cache holds them */
#define PLAN_CHUNKS_WANTED      65536u      /* a model of more has larger ones */
#define PLAN_CHUNKS_PER_OWNER   8u          /* enough to pipeline */
#define PLAN_CHUNKS_MAX         1048576u    /* 2^38 elements */
#define PLAN_PARK_BYTES         (64u << 20) /* contributions that an owner may have to park */

struct plan_model {
    uint64_t elements[PLAN_SECTIONS];
};

enum plan_owners {
    PLAN_MESH, /* each member owns one contiguous run of chunks */
    PLAN_STAR, /* slot 0 owns all */
};

struct plan {
    struct plan_model model;
    uint32_t members;
    enum plan_owners owners;
    uint32_t chunk_elements;
    uint32_t first_chunk[PLAN_SECTIONS + 1]; /* of each section; the last is the chunk count */
    uint32_t chunk_count;
    uint32_t window; /* chunks of one owner that a member may be ahead of that owner's mean */
};

struct plan_chunk {
    enum solo_role section;
    uint64_t first; /* element, counted from the start of its section */
    uint32_t elements;
};

/* SOLO_ELIMIT: more than PLAN_CHUNKS_MAX chunks. `members` >= 1. */
int plan_init(struct plan *plan, const struct plan_model *model, uint32_t members,
              enum plan_owners owners);
/* The map that catch-up and the anchor's digest use: chunks of PLAN_CHUNK_ELEMENTS_MAX,
 * whoever is in the job. */
int plan_init_state(struct plan *plan, const struct plan_model *model);

struct plan_chunk plan_chunk(const struct plan *plan, uint32_t index);
uint32_t plan_owner(const struct plan *plan, uint32_t index);
uint32_t plan_owned_first(const struct plan *plan, uint32_t slot);
uint32_t plan_owned_count(const struct plan *plan, uint32_t slot);

/* Most chunks that any member count up to SOLO_MEMBERS_MAX gives; for allocating once. */
uint32_t plan_chunks_max(const struct plan_model *model);
uint64_t plan_bytes(const struct plan_model *model); /* all sections, fp32 and int64 */

/* How long moving `bytes` may take: a floor plus bytes at the measured rate (0: unknown,
 * PLAN_RATE_FLOOR is assumed), three times over. */
#define PLAN_RATE_FLOOR 1000000u /* bytes per second */
uint64_t plan_transfer_us(uint64_t bytes, uint64_t bytes_per_second, uint64_t floor_us);

#endif
