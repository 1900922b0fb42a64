/* shard.h - an owner's bookkeeping: whose contribution to which of its chunks has come, which
 * chunks are reduced. A part of round.h. */
#ifndef SOLO_PROTOCOL_SHARD_H
#define SOLO_PROTOCOL_SHARD_H

#include "protocol/plan.h"

struct shard {
    uint32_t first, count; /* owned chunks */
    uint32_t members;
    uint32_t contributors; /* slots that send a delta */
    uint8_t *here;         /* bit per (owned chunk, slot) */
    uint16_t *here_count;  /* per owned chunk */
    uint8_t contributes[SOLO_MEMBERS_MAX / 8];
};

/* Bytes for any member count; 2-byte aligned. */
uint64_t shard_memory_bytes(const struct plan_model *model);
void shard_begin(struct shard *shard, const struct plan *plan, uint32_t slot,
                 const uint64_t *weights, void *memory);

enum shard_step { SHARD_WAITS = 0, SHARD_COMPLETE = 1 };
/* The contribution of `slot` to `chunk` is here. SHARD_COMPLETE: all are, reduce it now.
 * SOLO_EPEER: not this owner's chunk, not a contributor, or here already. */
int shard_add(struct shard *shard, uint32_t chunk, uint32_t slot);
bool shard_has(const struct shard *shard, uint32_t chunk, uint32_t slot);
/* Sets the bit of every contributor that the first incomplete chunk lacks; returns how many. */
uint32_t shard_owed(const struct shard *shard, uint8_t *owed);

#endif
