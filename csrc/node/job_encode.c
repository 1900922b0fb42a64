/* Our delta: anchor minus the caller's tensors, encoded once. */
#include <string.h>

#include "base/err.h"
#include "kernels/convert.h"
#include "node/job_inside.h"

void job_integers_out(struct job *job, int64_t *out, uint64_t start, uint64_t count,
                      void *const *data)
{
    size_t pieces = job_pieces(job, start, count, data);
    for (size_t i = 0; i < pieces; i++) {
        const struct codec_piece *piece = &job->pieces[i];
        convert_to_i64(out, piece->data, piece->dtype, piece->count);
        out += piece->count;
    }
}

static int refuse_value(const struct job *job, uint64_t element)
{
    struct layout_run run = layout_run_at(&job->layout, element, 1);
    return err_set(SOLO_ENONFINITE, "%s", run.tensor->name);
}

int job_encode_into(struct job *job, uint32_t index, uint8_t *out)
{
    struct plan_chunk chunk = plan_chunk(&job->round.plan, index);
    uint64_t flat = job_flat(job, chunk);
    if (chunk.section == SOLO_MAX) {
        job_integers_out(job, (int64_t *)(void *)out, flat, chunk.elements, job->data);
        return 0;
    }
    bool lossy = chunk.section == SOLO_PARAM && job->residual.base;
    job_pieces(job, flat, chunk.elements, job->data);
    struct codec_delta delta = {
        .anchor = (const float *)job->theta.base + flat,
        .pieces = job->pieces,
        .residual = lossy && job->round.keep_residuals ? (float *)job->residual.base + flat : NULL,
        .count = chunk.elements,
    };
    size_t bad;
    if (codec_encode(job_codec(job, chunk.section), &delta, out, &bad) < 0) {
        return refuse_value(job, flat + bad);
    }
    return 0;
}

int job_encode(struct job *job, uint32_t chunk)
{
    return job_owns(job, chunk) ? 0 : job_encode_into(job, chunk, job_mean_at(job, chunk));
}

const void *job_delta(const struct job *job, uint32_t chunk, uint32_t *size_out)
{
    *size_out = job_chunk_bytes(job, chunk);
    return job_owns(job, chunk) ? job->own_delta : job_mean_at(job, chunk);
}
