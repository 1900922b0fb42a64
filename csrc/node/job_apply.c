/* After COMMIT, block by block: the next anchor into the caller's tensors, with residuals and
 * digests on the way, while the block is in the cache. */
#include <string.h>

#include "base/err.h"
#include "kernels/convert.h"
#include "kernels/cpu.h"
#include "kernels/digest.h"
#include "node/job_inside.h"

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
        digest += digest_chunk(JOB_DIGEST_MOMENTUM | index, momentum + block.start,
                               block.count * sizeof *momentum);
    }
    return digest;
}

/* ---- residuals --------------------------------------------------------------------------- */

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

static void keep_block_residuals(struct job *job, const struct job_block *block)
{
    for (uint64_t done = 0; done < block->count;) {
        struct part part = part_at(job, block, done);
        job_pieces(job, part.flat, part.count, job->data);
        keep_residuals(job, &part);
        done += part.count;
    }
}

static void swap(struct area *one, struct area *other)
{
    struct area held = *one;
    *one = *other;
    *other = held;
}

void job_take_next(struct job *job)
{
    swap(&job->theta, &job->next_theta);
    swap(&job->integers, &job->next_integers);
    swap(&job->momentum, &job->next_momentum);
}

static void give_floats(struct job *job, uint64_t start, uint64_t count, const float *from)
{
    size_t pieces = job_pieces(job, start, count, job->data);
    for (size_t i = 0; i < pieces; i++) {
        const struct codec_piece *piece = &job->pieces[i];
        if (piece->dtype == SOLO_F32) {
            job_put(job, piece->data, from, piece->count * sizeof *from);
        } else {
            convert_from_f32(piece->data, from, piece->dtype, piece->count);
        }
        from += piece->count;
    }
}

/* As job_block_digest, and to the caller, in one pass over the next anchor. */
static void apply_block(struct job *job, const struct job_block *block)
{
    if (block->section == SOLO_MAX) {
        job->apply_digest +=
            job_block_digest(job, job->apply_block, NULL, job->next_integers.base, NULL);
        const int64_t *in = job->next_integers.base;
        job_integers_in(job, in + (block->start - layout_floats(&job->layout)), block->start,
                        block->count, job->data);
        return;
    }
    const float *anchor = job->next_theta.base;
    bool digested = job_chunks_are_blocks(job);
    struct digest digest;
    digest_begin(&digest, job->apply_block);
    for (uint64_t done = 0; done < block->count; done += JOB_TILE_ELEMENTS) {
        uint64_t left = block->count - done, start = block->start + done;
        uint64_t count = left < JOB_TILE_ELEMENTS ? left : JOB_TILE_ELEMENTS;
        job_look_ahead(anchor + start);
        if (!digested) {
            digest_feed(&digest, anchor + start, count * sizeof *anchor);
        }
        give_floats(job, start, count, anchor + start);
    }
    job->apply_digest += digested ? job->block_digests[job->apply_block] : digest_end(&digest);
    const float *momentum = job->next_momentum.base;
    if (momentum && block->section < SOLO_MEAN && !digested) {
        job->apply_digest += digest_chunk(JOB_DIGEST_MOMENTUM | job->apply_block,
                                          momentum + block->start, block->count * sizeof *momentum);
    }
}

bool job_apply(struct job *job)
{
    if (job->apply_block < job->blocks[LAYOUT_SECTIONS]) {
        struct job_block block = job_block(job, job->apply_block);
        if (block.section == SOLO_PARAM && job->residual.base) {
            keep_block_residuals(job, &block);
        }
        apply_block(job, &block);
        job->apply_block++;
    }
    if (job->apply_block < job->blocks[LAYOUT_SECTIONS]) {
        return false;
    }
    job_take_next(job);
    job->digest = job->apply_digest;
    return true;
}
