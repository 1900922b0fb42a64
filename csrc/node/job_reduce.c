/* The owner's work: members' encoded chunks in, one encoded mean out; and what a member does
 * with a mean that arrives. */
#include <string.h>

#include "base/err.h"
#include "kernels/cpu.h"
#include "kernels/digest.h"
#include "node/job_inside.h"

static int check_size(const struct job *job, uint32_t chunk, uint32_t size)
{
    if (chunk >= job->round.plan.chunk_count || size != job_chunk_bytes(job, chunk)) {
        return err_set(SOLO_EPEER, "chunk %u with %u bytes is not of this round", chunk, size);
    }
    return 0;
}

int job_room_delta(struct job *job, uint32_t slot, uint32_t chunk, uint32_t size, void **out)
{
    TRY(check_size(job, chunk, size));
    if (slot >= job->round.plan.members || slot == job->round.slot || !job_owns(job, chunk)) {
        return err_set(SOLO_EPEER, "a delta of chunk %u is not for this node", chunk);
    }
    *out = job_inbox_at(job, slot, chunk);
    return 0;
}

static int check_values(const struct job *job, uint32_t index, const void *bytes)
{
    struct plan_chunk chunk = plan_chunk(&job->round.plan, index);
    if (chunk.section == SOLO_MAX) {
        return 0;
    }
    return codec_check(job_codec(job, chunk.section), bytes, job_chunk_bytes(job, index),
                       chunk.elements);
}

int job_take_delta(struct job *job, uint32_t slot, uint32_t chunk)
{
    return check_values(job, chunk, job_inbox_at(job, slot, chunk));
}

const uint8_t *job_source(const struct job *job, uint32_t slot, uint32_t chunk)
{
    return slot == job->round.slot ? job->own_delta : job_inbox_at(job, slot, chunk);
}

static void reduce_integers(struct job *job, uint32_t index, uint32_t count)
{
    const struct vec *vec = cpu_vec();
    struct plan_chunk chunk = plan_chunk(&job->round.plan, index);
    int64_t *out = (int64_t *)(void *)job_mean_at(job, index);
    uint64_t first = job_flat(job, chunk) - layout_floats(&job->layout);
    bool any = false;
    for (uint32_t slot = 0; slot < job->round.plan.members; slot++) {
        if (job->round.weights[slot] == 0) {
            continue;
        }
        const int64_t *in = (const int64_t *)(const void *)job_source(job, slot, index);
        if (any) {
            vec->max_i64(out, out, in, count);
        } else {
            memcpy(out, in, count * sizeof *out);
        }
        any = true;
    }
    if (!any) {
        memcpy(out, (const int64_t *)job->integers.base + first, count * sizeof *out);
    }
}

static int reduce_floats(struct job *job, uint32_t index, struct plan_chunk chunk)
{
    const void *sources[SOLO_MEMBERS_MAX];
    for (uint32_t slot = 0; slot < job->round.plan.members; slot++) {
        sources[slot] = job->round.weights[slot] == 0 ? NULL : job_source(job, slot, index);
    }
    bool lossy = chunk.section == SOLO_PARAM && job->owner_residual.base;
    uint64_t flat = job_flat(job, chunk);
    struct codec_mean mean = {
        .sources = sources,
        .weights = job->round.weights,
        .source_count = job->round.plan.members,
        .residual =
            lossy && job->round.keep_residuals ? (float *)job->owner_residual.base + flat : NULL,
        .count = chunk.elements,
    };
    size_t bad;
    if (codec_reduce(job_codec(job, chunk.section), &mean, job_mean_at(job, index), &bad) < 0) {
        struct layout_run run = layout_run_at(&job->layout, flat + bad, 1);
        return err_set(SOLO_ENONFINITE, "%s (in the mean)", run.tensor->name);
    }
    return 0;
}

static void add_digest(struct job *job, uint32_t chunk)
{
    job->mean_digest += digest_chunk(chunk, job_mean_at(job, chunk), job_chunk_bytes(job, chunk));
}

int job_reduce(struct job *job, uint32_t index)
{
    struct plan_chunk chunk = plan_chunk(&job->round.plan, index);
    if (job->round.weights[job->round.slot] != 0) {
        TRY(job_encode_into(job, index, job->own_delta));
    }
    if (chunk.section == SOLO_MAX) {
        reduce_integers(job, index, chunk.elements);
    } else {
        TRY(reduce_floats(job, index, chunk));
    }
    add_digest(job, index);
    return 0;
}

const void *job_mean(const struct job *job, uint32_t chunk, uint32_t *size_out)
{
    *size_out = job_chunk_bytes(job, chunk);
    return job_mean_at(job, chunk);
}

int job_room_mean(struct job *job, uint32_t chunk, uint32_t size, void **out)
{
    TRY(check_size(job, chunk, size));
    if (job_owns(job, chunk)) {
        return err_set(SOLO_EPEER, "the mean of chunk %u is this node's to send", chunk);
    }
    *out = job_mean_at(job, chunk);
    return 0;
}

int job_take_mean(struct job *job, uint32_t chunk)
{
    TRY(check_values(job, chunk, job_mean_at(job, chunk)));
    add_digest(job, chunk);
    return 0;
}
