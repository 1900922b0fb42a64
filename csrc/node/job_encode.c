/* Our delta: anchor minus the caller's tensors, encoded once. */
#include <string.h>

#include "base/err.h"
#include "kernels/convert.h"
#include "kernels/cpu.h"
#include "kernels/digest.h"
#include "kernels/half.h"
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

int job_encode_tile(struct job *job, const struct job_tile *tile, uint8_t *out)
{
    if (tile->section == SOLO_MAX) {
        job_integers_out(job, (int64_t *)(void *)out, tile->flat, tile->count, job->data);
        return 0;
    }
    bool lossy = tile->section == SOLO_PARAM && job->residual.base && job->round.keep_residuals;
    job_pieces(job, tile->flat, tile->count, job->data);
    struct codec_delta delta = {
        .anchor = (const float *)job->theta.base + tile->flat,
        .pieces = job->pieces,
        .residual = lossy ? (float *)job->residual.base + tile->flat : NULL,
        .count = tile->count,
    };
    size_t bad;
    if (codec_encode(job_codec(job, tile->section), &delta, out, &bad) < 0) {
        return refuse_value(job, tile->flat + bad);
    }
    return 0;
}

static bool all_zero(const uint8_t *bytes, size_t size)
{
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

void job_note_delta(struct job *job, uint32_t chunk, const struct job_tile *tile,
                    const uint8_t *bytes)
{
    if (tile->first == 0 && !all_zero(bytes, tile->bytes)) {
        job->delta_digest += digest_chunk(chunk, bytes, tile->bytes);
    }
}

const float *job_local(struct job *job, const struct job_tile *tile)
{
    size_t pieces = job_pieces(job, tile->flat, tile->count, job->data);
    if (pieces == 1 && job->pieces[0].dtype == SOLO_F32) {
        return job->pieces[0].data;
    }
    float *values = (float *)(void *)job->tiles->own;
    codec_gather(values, job->pieces, tile->count);
    return values;
}

/* A plain delta straight into a link's memory, through the caches: a ring is small enough to stay in
 * one that both processes share, and writing to main memory is what such a merge waits for. false:
 * it is not plain, or not finite, or one of those that are looked at. */
static bool encode_pass(struct job *job, const struct job_tile *tile, uint8_t *room)
{
    bool plain = tile->section != SOLO_MAX && !codec_has_residual(job_codec(job, tile->section));
    if (!room || !plain || tile->first == 0) {
        return false;
    }
    const float *anchor = (const float *)job->theta.base + tile->flat;
    float *to = (float *)(void *)(room + tile->byte);
    return cpu_vec()->delta_most(to, anchor, job_local(job, tile), tile->count) < F32_INF;
}

int job_encode(struct job *job, uint32_t index, void *room)
{
    if (job_owns(job, index)) {
        return 0;
    }
    struct plan_chunk chunk = plan_chunk(&job->round.plan, index);
    uint8_t *waits = job_mean_at(job, index);
    for (struct job_tile tile = {0}; job_tile_next(job, &chunk, &tile);) {
        if (encode_pass(job, &tile, room)) {
            continue;
        }
        uint8_t *out = room ? job->tiles->own : waits + tile.byte;
        TRY(job_encode_tile(job, &tile, out));
        job_note_delta(job, index, &tile, out);
        if (room) {
            memcpy((uint8_t *)room + tile.byte, out, tile.bytes);
        }
    }
    job->made.chunk = index;
    job->made.at = room;
    return 0;
}

const void *job_delta(const struct job *job, uint32_t chunk, uint32_t *size_out)
{
    return job_mean(job, chunk, size_out); /* the same place, at another time */
}
