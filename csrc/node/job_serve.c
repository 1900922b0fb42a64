/* An anchor on its way to a joiner, or from a donor. */
#include <string.h>

#include "base/err.h"
#include "node/job_inside.h"

struct range {
    uint64_t byte; /* in the area */
    uint32_t size; /* 0: there is none */
};

static struct range range_of(const struct job *job, uint32_t index, bool momentum)
{
    struct plan_chunk chunk = plan_chunk(&job->state_plan, index);
    uint64_t flat = job->layout.section_start[chunk.section] + chunk.first;
    if (chunk.section == SOLO_MAX) {
        uint64_t first = flat - layout_floats(&job->layout);
        return (struct range){first * 8, momentum ? 0 : chunk.elements * 8};
    }
    bool none = momentum && (!job->momentum.base || chunk.section == SOLO_MEAN);
    return (struct range){flat * 4, none ? 0 : chunk.elements * 4};
}

static bool is_integers(const struct job *job, uint32_t index)
{
    return index >= job->state_plan.first_chunk[SOLO_MAX];
}

const void *job_state(const struct job *job, uint32_t index, bool momentum, uint32_t *size_out)
{
    *size_out = 0;
    if (index >= job->state_plan.chunk_count || !job->has_anchor) {
        return NULL;
    }
    struct range range = range_of(job, index, momentum);
    const struct area *area = momentum                  ? &job->momentum
                              : is_integers(job, index) ? &job->integers
                                                        : &job->theta;
    *size_out = range.size;
    return range.size ? (const uint8_t *)area->base + range.byte : NULL;
}

int job_room_state(struct job *job, uint32_t index, bool momentum, uint32_t size, void **out)
{
    struct range range = {0};
    if (index < job->state_plan.chunk_count) {
        range = range_of(job, index, momentum);
    }
    if (range.size != size || size == 0) {
        return err_set(SOLO_EPEER, "state chunk %u with %u bytes is not of this model", index,
                       size);
    }
    struct area *area = momentum                  ? &job->next_momentum
                        : is_integers(job, index) ? &job->next_integers
                                                  : &job->next_theta;
    *out = (uint8_t *)area->base + range.byte;
    return 0;
}

uint64_t job_hash(const struct job *job)
{
    uint64_t digest = 0;
    for (uint64_t i = 0; i < job->blocks[LAYOUT_SECTIONS]; i++) {
        digest += job_block_digest(job, i, job->theta.base, job->integers.base, job->momentum.base);
    }
    return digest;
}

uint64_t job_fetch_end(struct job *job, uint64_t wanted)
{
    uint64_t found = job->walk_digest;
    if (wanted != 0 && found != wanted) {
        return found;
    }
    job_take_next(job);
    job->digest = found;
    job->has_anchor = true;
    return found;
}
