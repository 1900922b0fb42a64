#include "protocol/shard.h"

#include <string.h>

#include "base/err.h"
#include "protocol/bits.h"

/* In mesh an owner has at most ceil(chunks / members) chunks, so that (chunk, member) pairs are
 * at most chunks + members; one member alone owns all chunks. */
static uint64_t here_bytes(uint64_t chunks_max)
{
    return (chunks_max + SOLO_MEMBERS_MAX) / 8 + 1;
}

uint64_t shard_memory_bytes(const struct plan_model *model)
{
    uint64_t chunks = plan_chunks_max(model);
    return 2 * chunks + here_bytes(chunks);
}

void shard_begin(struct shard *shard, const struct plan *plan, uint32_t slot,
                 const uint64_t *weights, void *memory)
{
    MUST(plan->owners == PLAN_MESH); /* here_bytes counts on it */
    *shard = (struct shard){.first = plan_owned_first(plan, slot),
                            .count = plan_owned_count(plan, slot),
                            .members = plan->members,
                            .here_count = (uint16_t *)memory};
    shard->here = (uint8_t *)memory + 2 * (uint64_t)plan_chunks_max(&plan->model);
    memset(shard->here_count, 0, 2 * (size_t)shard->count);
    memset(shard->here, 0, ((uint64_t)shard->count * shard->members) / 8 + 1);
    for (uint32_t i = 0; i < plan->members; i++) {
        if (weights[i] > 0) {
            bit_set(shard->contributes, i);
            shard->contributors++;
        }
    }
}

bool shard_has(const struct shard *shard, uint32_t chunk, uint32_t slot)
{
    return bit_is(shard->here, (uint64_t)(chunk - shard->first) * shard->members + slot);
}

int shard_add(struct shard *shard, uint32_t chunk, uint32_t slot)
{
    if (chunk < shard->first || chunk - shard->first >= shard->count) {
        return err_set(SOLO_EPEER, "chunk %u is not of this owner", chunk);
    }
    if (slot >= shard->members || !bit_is(shard->contributes, slot)) {
        return err_set(SOLO_EPEER, "slot %u contributes nothing in this round", slot);
    }
    if (shard_has(shard, chunk, slot)) {
        return err_set(SOLO_EPEER, "chunk %u of slot %u came twice", chunk, slot);
    }
    bit_set(shard->here, (uint64_t)(chunk - shard->first) * shard->members + slot);
    uint16_t here = ++shard->here_count[chunk - shard->first];
    return here == shard->contributors ? SHARD_COMPLETE : SHARD_WAITS;
}

uint32_t shard_owed(const struct shard *shard, uint8_t *owed)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < shard->count; i++) {
        if (shard->here_count[i] == shard->contributors) {
            continue; /* complete */
        }
        for (uint32_t slot = 0; slot < shard->members; slot++) {
            if (bit_is(shard->contributes, slot) && !shard_has(shard, shard->first + i, slot)) {
                bit_set(owed, slot);
                count++;
            }
        }
        return count; /* the first that is not complete: later ones wait for its mean */
    }
    return count;
}
