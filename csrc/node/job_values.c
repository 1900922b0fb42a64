/* What goes through the whole model outside of a round: the caller's values into the anchor and the
 * other way, and the digest of an anchor that was fetched. A block a call, as job_apply: with a
 * large model the whole takes longer than a lease, and heartbeats have to pass in between. */
#include <string.h>

#include "node/job_inside.h"

void job_walk_drop(struct job *job)
{
    job->walk_block = 0;
}

/* The block that is next; false: there is none, and the next walk may begin. */
static bool step(struct job *job, struct job_block *block_out, uint64_t *index_out)
{
    if (job->walk_block == 0) {
        job->walk_digest = 0;
    }
    if (job->walk_block >= job->blocks[LAYOUT_SECTIONS]) {
        return false;
    }
    *index_out = job->walk_block++;
    *block_out = job_block(job, *index_out);
    return true;
}

static bool walked(struct job *job)
{
    if (job->walk_block < job->blocks[LAYOUT_SECTIONS]) {
        return false;
    }
    job->walk_block = 0;
    return true;
}

bool job_take_values(struct job *job, void *const *data)
{
    struct job_block block;
    uint64_t index;
    if (step(job, &block, &index)) {
        float *momentum = job->momentum.base;
        if (block.section == SOLO_MAX) {
            int64_t *out = job->integers.base;
            job_integers_out(job, out + (block.start - layout_floats(&job->layout)), block.start,
                             block.count, data);
        } else {
            job_pieces(job, block.start, block.count, data);
            codec_gather((float *)job->theta.base + block.start, job->pieces, block.count);
        }
        if (momentum && block.section < SOLO_MEAN) {
            memset(momentum + block.start, 0, block.count * sizeof *momentum);
        }
        job->walk_digest +=
            job_block_digest(job, index, job->theta.base, job->integers.base, momentum);
    }
    if (!walked(job)) {
        return false;
    }
    job->digest = job->walk_digest;
    job->has_anchor = true;
    return true;
}

bool job_give_values(struct job *job, void *const *data)
{
    struct job_block block;
    uint64_t index;
    if (step(job, &block, &index)) {
        if (block.section == SOLO_MAX) {
            const int64_t *in = job->integers.base;
            job_integers_in(job, in + (block.start - layout_floats(&job->layout)), block.start,
                            block.count, data);
        } else {
            job_pieces(job, block.start, block.count, data);
            codec_scatter(job->pieces, (float *)job->theta.base + block.start, block.count);
        }
    }
    return walked(job);
}

bool job_fetch_hash(struct job *job)
{
    struct job_block block;
    uint64_t index;
    if (step(job, &block, &index)) {
        job->walk_digest += job_block_digest(job, index, job->next_theta.base,
                                             job->next_integers.base, job->next_momentum.base);
    }
    return walked(job);
}
