/* After COMMIT: the outer step on the anchor, block by block, and the new anchor into the
 * caller's tensors; residuals and digests on the way, while the block is in the cache. */
#include <string.h>

#include "base/err.h"
#include "kernels/convert.h"
#include "kernels/digest.h"
#include "node/job_inside.h"

#define DIGEST_MOMENTUM (UINT64_C(1) << 40) /* block numbers of the momentum begin here */

void job_integers_in(struct job *job, const int64_t *in, uint64_t start, uint64_t count,
                     void *const *data)
{
    size_t pieces = job_pieces(job, start, count, data);
    for (size_t i = 0; i < pieces; i++) {
        const struct codec_piece *piece = &job->pieces[i];
        convert_from_i64(piece->data, in, piece->dtype, piece->count);
        in += piece->count;
    }
}

uint64_t job_block_digest(const struct job *job, uint64_t index, const float *theta,
                          const int64_t *integers, const float *momentum)
{
    struct job_block block = job_block(job, index);
    if (block.section == SOLO_MAX) {
        const int64_t *at = integers + (block.start - layout_floats(&job->layout));
        return digest_chunk(index, at, block.count * sizeof *at);
    }
    uint64_t digest = digest_chunk(index, theta + block.start, block.count * sizeof *theta);
    if (momentum && block.section < SOLO_MEAN) {
        digest += digest_chunk(DIGEST_MOMENTUM | index, momentum + block.start,
                               block.count * sizeof *momentum);
    }
    return digest;
}

/* ---- the outer step ---------------------------------------------------------------------- */

static struct vec_outer outer_of(const struct rule_step *step, enum solo_role section)
{
    if (section == SOLO_MEAN) {
        return outer_average();
    }
    switch (step->kind) {
    case RULE_AVG:
        break;
    case RULE_SLOWMO:
        return outer_slowmo(step->lr, step->beta, step->gamma);
    case RULE_NESTEROV:
        return outer_nesterov(step->lr, step->beta);
    }
    return outer_average();
}

/* A part of a block that lies in one chunk. */
struct part {
    uint32_t chunk;
    uint64_t flat, count;
    uint64_t byte; /* of the part in the encoded chunk */
};

/* What the codec lost, kept for the next round. Encoding again gives the same bits as the
 * first time, so no second copy of the residuals is needed while a round may be aborted. (For
 * a shard of ours the encoded delta is then what the owner's sum takes as our part.) */
static void keep_residuals(struct job *job, const struct part *part)
{
    const struct job_round *round = &job->round;
    size_t bad;
    if (round->weights[round->slot] != 0) {
        float *residual = (float *)job->residual.base + part->flat;
        struct codec_delta delta = {
            .anchor = (const float *)job->theta.base + part->flat,
            .pieces = job->pieces,
            .residual = round->keep_residuals ? residual : NULL,
            .residual_out = residual,
            .count = part->count,
        };
        (void)codec_encode(job->codec, &delta, job->scratch[0], &bad); /* it was finite before */
    }
    if (job_owns(job, part->chunk)) {
        const void *sources[SOLO_MEMBERS_MAX];
        for (uint32_t slot = 0; slot < round->plan.members; slot++) {
            const uint8_t *from = slot == round->slot
                                      ? job->scratch[0]
                                      : job_inbox_at(job, slot, part->chunk) + part->byte;
            sources[slot] = round->weights[slot] == 0 ? NULL : from;
        }
        float *residual = (float *)job->owner_residual.base + part->flat;
        struct codec_mean mean = {
            .sources = sources,
            .weights = round->weights,
            .source_count = round->plan.members,
            .residual = round->keep_residuals ? residual : NULL,
            .residual_out = residual,
            .count = part->count,
        };
        (void)codec_reduce(job->codec, &mean, job->scratch[1], &bad);
    }
}

static void apply_floats(struct job *job, enum solo_role section, const struct part *part)
{
    const struct codec *codec = job_codec(job, section);
    job_pieces(job, part->flat, part->count, job->data);
    if (section == SOLO_PARAM && job->residual.base) {
        keep_residuals(job, part);
    }
    struct vec_outer outer = outer_of(&job->round.step, section);
    float *momentum = job->momentum.base;
    struct codec_step step = {
        .mean = job_mean_at(job, part->chunk) + part->byte,
        .outer = &outer,
        .anchor = (float *)job->theta.base + part->flat,
        .momentum = momentum && section != SOLO_MEAN ? momentum + part->flat : NULL,
        .pieces = job->pieces,
        .count = part->count,
    };
    codec_apply(codec, &step);
}

static void apply_integers(struct job *job, const struct part *part)
{
    int64_t *anchor = (int64_t *)job->integers.base + (part->flat - layout_floats(&job->layout));
    memcpy(anchor, job_mean_at(job, part->chunk) + part->byte, part->count * sizeof *anchor);
    job_integers_in(job, anchor, part->flat, part->count, job->data);
}

/* The part of the block that begins `done` elements into it. */
static struct part part_at(const struct job *job, const struct job_block *block, uint64_t done)
{
    const struct plan *plan = &job->round.plan;
    uint64_t element = block->first + done;
    uint32_t index = plan->first_chunk[block->section] + (uint32_t)(element / plan->chunk_elements);
    struct plan_chunk chunk = plan_chunk(plan, index);
    uint64_t inside = element - chunk.first, left = chunk.elements - inside;
    uint64_t count = block->count - done < left ? block->count - done : left;
    uint64_t byte = block->section == SOLO_MAX
                        ? inside * sizeof(int64_t)
                        : codec_bytes(job_codec(job, block->section), inside);
    return (struct part){index, block->start + done, count, byte};
}

void job_apply_begin(struct job *job)
{
    job->apply_block = 0;
    job->apply_digest = 0;
}

bool job_apply(struct job *job)
{
    if (job->apply_block < job->blocks[LAYOUT_SECTIONS]) {
        struct job_block block = job_block(job, job->apply_block);
        for (uint64_t done = 0; done < block.count;) {
            struct part part = part_at(job, &block, done);
            if (block.section == SOLO_MAX) {
                apply_integers(job, &part);
            } else {
                apply_floats(job, block.section, &part);
            }
            done += part.count;
        }
        job->apply_digest += job_block_digest(job, job->apply_block, job->theta.base,
                                              job->integers.base, job->momentum.base);
        job->apply_block++;
    }
    if (job->apply_block < job->blocks[LAYOUT_SECTIONS]) {
        return false;
    }
    job->digest = job->apply_digest;
    return true;
}
