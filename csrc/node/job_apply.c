/* The outer step, into the next anchor; and after COMMIT, block by block, the next anchor into the
 * caller's tensors, with residuals and digests on the way, while the block is in the cache. */
#include <string.h>

#include "base/err.h"
#include "kernels/convert.h"
#include "kernels/cpu.h"
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

static void put(const struct job *job, void *to, const void *from, size_t size)
{
    if (job->stream) {
        cpu_vec()->copy_stream(to, from, size);
    } else if (size) {
        memcpy(to, from, size);
    }
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

/* The next tile of what this one is read from is on its way meanwhile: tile after tile, the
 * processor does not see by itself that it will be wanted. Past the end it does nothing. */
static void look_ahead(const float *from)
{
    const char *next = (const char *)(from + JOB_TILE_ELEMENTS);
    for (size_t i = 0; i < JOB_TILE_ELEMENTS * sizeof *from; i += 64) {
        __builtin_prefetch(next + i, 0, 2);
    }
}

/* Chunks as large as blocks are blocks: their digests are had while they are in the cache. */
static bool chunks_are_blocks(const struct job *job)
{
    return job->round.plan.chunk_elements == JOB_BLOCK_ELEMENTS;
}

static void digest_step(struct job *job, const struct job_tile *tile, const float *anchor,
                        const float *momentum)
{
    uint64_t first = tile->flat - job->layout.section_start[tile->section];
    uint64_t index = job->blocks[tile->section] + first / JOB_BLOCK_ELEMENTS;
    if (tile->first == 0) {
        digest_begin(&job->step_digest, index);
        digest_begin(&job->step_momentum_digest, DIGEST_MOMENTUM | index);
    }
    digest_feed(&job->step_digest, anchor, tile->count * sizeof *anchor);
    uint64_t digest = digest_end(&job->step_digest);
    if (momentum) {
        digest_feed(&job->step_momentum_digest, momentum, tile->count * sizeof *momentum);
        digest += digest_end(&job->step_momentum_digest);
    }
    job->block_digests[index] = digest; /* whole with the last tile */
}

static void step_floats(struct job *job, const struct job_tile *tile, const uint8_t *mean)
{
    struct vec_outer outer = outer_of(&job->round.step, tile->section);
    bool moves = job->momentum.base && tile->section != SOLO_MEAN;
    float *anchor = job->tiles->anchor, *momentum = moves ? job->tiles->momentum : NULL;
    size_t bytes = tile->count * sizeof *anchor;
    const float *held = (const float *)job->theta.base + tile->flat;
    look_ahead(held);
    memcpy(anchor, held, bytes);
    if (moves) {
        held = (const float *)job->momentum.base + tile->flat;
        look_ahead(held);
        memcpy(momentum, held, bytes);
    }
    struct codec_step step = {mean, &outer, anchor, momentum, NULL, tile->count};
    codec_apply(job_codec(job, tile->section), &step);
    if (chunks_are_blocks(job)) {
        digest_step(job, tile, anchor, momentum);
    }
    float *next = (float *)job->next_theta.base + tile->flat;
    if ((const void *)next == (const void *)mean) { /* it waited there: it is in the cache */
        memcpy(next, anchor, bytes);
    } else {
        put(job, next, anchor, bytes);
    }
    if (moves) {
        put(job, (float *)job->next_momentum.base + tile->flat, momentum, bytes);
    }
}

void job_step(struct job *job, const struct job_tile *tile, const uint8_t *mean)
{
    if (tile->section == SOLO_MAX) {
        uint64_t first = tile->flat - layout_floats(&job->layout);
        memmove((int64_t *)job->next_integers.base + first, mean, tile->bytes);
    } else {
        step_floats(job, tile, mean);
    }
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
            put(job, piece->data, from, piece->count * sizeof *from);
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
    bool digested = chunks_are_blocks(job);
    struct digest digest;
    digest_begin(&digest, job->apply_block);
    for (uint64_t done = 0; done < block->count; done += JOB_TILE_ELEMENTS) {
        uint64_t left = block->count - done, start = block->start + done;
        uint64_t count = left < JOB_TILE_ELEMENTS ? left : JOB_TILE_ELEMENTS;
        look_ahead(anchor + start);
        if (!digested) {
            digest_feed(&digest, anchor + start, count * sizeof *anchor);
        }
        give_floats(job, start, count, anchor + start);
    }
    job->apply_digest += digested ? job->block_digests[job->apply_block] : digest_end(&digest);
    const float *momentum = job->next_momentum.base;
    if (momentum && block->section < SOLO_MEAN && !digested) {
        job->apply_digest += digest_chunk(DIGEST_MOMENTUM | job->apply_block,
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
