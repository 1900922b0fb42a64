/* The outer step into the next anchor, as soon as there is a mean: step by step, tile after tile in
 * the first level cache, or where the values are plain, together with what makes and hashes the
 * mean in one pass over memory, which is all that such a merge waits for. */
#include <string.h>

#include "base/err.h"
#include "kernels/cpu.h"
#include "kernels/half.h"
#include "node/job_inside.h"

void job_put(const struct job *job, void *to, const void *from, size_t size)
{
    if (job->stream) {
        cpu_vec()->copy_stream(to, from, size);
    } else if (size) {
        memcpy(to, from, size);
    }
}

/* The next tile of what this one is read from is on its way meanwhile: tile after tile, the
 * processor does not see by itself that it will be wanted. Past the end it does nothing. */
void job_look_ahead(const float *from)
{
    const char *next = (const char *)(from + JOB_TILE_ELEMENTS);
    for (size_t i = 0; i < JOB_TILE_ELEMENTS * sizeof *from; i += 64) {
        __builtin_prefetch(next + i, 0, 2);
    }
}

/* ---- step by step ------------------------------------------------------------------------ */

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

/* Chunks as large as blocks are blocks: their digests are had while they are in the cache. */
bool job_chunks_are_blocks(const struct job *job)
{
    return job->round.plan.chunk_elements == JOB_BLOCK_ELEMENTS;
}

static uint64_t block_of(const struct job *job, const struct job_tile *tile)
{
    uint64_t first = tile->flat - job->layout.section_start[tile->section];
    return job->blocks[tile->section] + first / JOB_BLOCK_ELEMENTS;
}

static void begin_digests(struct job *job, const struct job_tile *tile)
{
    if (tile->first == 0) {
        uint64_t block = block_of(job, tile);
        digest_begin(&job->step_digest, block);
        digest_begin(&job->step_momentum_digest, JOB_DIGEST_MOMENTUM | block);
    }
}

/* Whole with the last tile. */
static void note_digests(struct job *job, const struct job_tile *tile, bool moves)
{
    uint64_t digest = digest_end(&job->step_digest);
    digest += moves ? digest_end(&job->step_momentum_digest) : 0;
    job->block_digests[block_of(job, tile)] = digest;
}

static bool moves_in(const struct job *job, enum solo_role section)
{
    return job->momentum.base && section != SOLO_MEAN;
}

static void step_floats(struct job *job, const struct job_tile *tile, const uint8_t *mean)
{
    struct vec_outer outer = outer_of(&job->round.step, tile->section);
    bool moves = moves_in(job, tile->section);
    float *anchor = job->tiles->anchor, *momentum = moves ? job->tiles->momentum : NULL;
    size_t bytes = tile->count * sizeof *anchor;
    const float *held = (const float *)job->theta.base + tile->flat;
    job_look_ahead(held);
    memcpy(anchor, held, bytes);
    if (moves) {
        held = (const float *)job->momentum.base + tile->flat;
        job_look_ahead(held);
        memcpy(momentum, held, bytes);
    }
    struct codec_step step = {mean, &outer, anchor, momentum, NULL, tile->count};
    codec_apply(job_codec(job, tile->section), &step);
    if (job_chunks_are_blocks(job)) {
        begin_digests(job, tile);
        digest_feed(&job->step_digest, anchor, bytes);
        if (moves) {
            digest_feed(&job->step_momentum_digest, momentum, bytes);
        }
        note_digests(job, tile, moves);
    }
    float *next = (float *)job->next_theta.base + tile->flat;
    if ((const void *)next == (const void *)mean) { /* it waited there: it is in the cache */
        memcpy(next, anchor, bytes);
    } else {
        job_put(job, next, anchor, bytes);
    }
    if (moves) {
        job_put(job, (float *)job->next_momentum.base + tile->flat, momentum, bytes);
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

/* ---- in one pass ------------------------------------------------------------------------- */

static float *floats_at(const struct area *area, uint64_t element)
{
    return (float *)area->base + element;
}

/* Whether a pass may take the tile with a mean, or a delta, that lies at `from`. */
static bool may_pass(const struct job *job, const struct job_tile *tile, const void *from)
{
    bool plain = tile->section != SOLO_MAX && !codec_has_residual(job_codec(job, tile->section));
    const float *next = plain ? floats_at(&job->next_theta, tile->flat) : NULL;
    return plain && job->stream && job_chunks_are_blocks(job) && tile->count % 16 == 0 &&
           (uintptr_t)next % 64 == 0 && from != (const void *)next; /* there it is in the cache */
}

static bool take_pass(struct job *job, const struct job_tile *tile, struct vec_pass *pass,
                      struct digest *digest)
{
    struct vec_outer outer = outer_of(&job->round.step, tile->section);
    bool moves = moves_in(job, tile->section);
    begin_digests(job, tile);
    pass->anchor = floats_at(&job->theta, tile->flat);
    pass->next = floats_at(&job->next_theta, tile->flat);
    pass->momentum = moves ? floats_at(&job->momentum, tile->flat) : NULL;
    pass->next_momentum = moves ? floats_at(&job->next_momentum, tile->flat) : NULL;
    pass->outer = &outer;
    pass->mean_lanes = digest->lanes;
    pass->next_lanes = job->step_digest.lanes;
    pass->momentum_lanes = job->step_momentum_digest.lanes;
    if (cpu_vec()->merge_pass(pass, tile->count) >= F32_INF) {
        return false; /* the digests have some of it, but the single steps will end the attempt */
    }
    digest_fed(digest, tile->bytes);
    digest_fed(&job->step_digest, tile->bytes);
    if (moves) {
        digest_fed(&job->step_momentum_digest, tile->bytes);
    }
    note_digests(job, tile, moves);
    return true;
}

bool job_pass_mean(struct job *job, const struct job_tile *tile, const void *mean,
                   struct digest *digest)
{
    if (!may_pass(job, tile, mean)) {
        return false;
    }
    struct vec_pass pass = {.delta = mean};
    return take_pass(job, tile, &pass, digest);
}

bool job_pass_sum(struct job *job, const struct job_tile *tile, const void *other, uint8_t *mean,
                  struct digest *digest)
{
    const struct job_round *round = &job->round;
    if (!may_pass(job, tile, other)) {
        return false;
    }
    struct vec_pass pass = {
        .delta = other,
        .local = job_local(job, tile),
        .own = round->weights[round->slot],
        .other = round->weights[1 - round->slot],
        .mean = (float *)(void *)mean,
    };
    return take_pass(job, tile, &pass, digest);
}
