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

bool job_lends(const struct job *job)
{
    return !job->owner_residual.base; /* which is found from the deltas, after COMMIT */
}

int job_take_delta(struct job *job, uint32_t slot, uint32_t chunk, const void *bytes)
{
    TRY(check_values(job, chunk, bytes));
    uint8_t *waits = job_inbox_at(job, slot, chunk);
    bool lent = bytes != waits;
    if (lent && plan_chunk(&job->round.plan, chunk).section == SOLO_MAX) {
        memcpy(waits, bytes, job_chunk_bytes(job, chunk)); /* a link has floats at multiples of 4 */
        lent = false;
    }
    job->lent.slot = slot;
    job->lent.chunk = chunk;
    job->lent.at = lent ? bytes : NULL;
    return 0;
}

void job_keep(struct job *job)
{
    if (job->lent.at) {
        memcpy(job_inbox_at(job, job->lent.slot, job->lent.chunk), job->lent.at,
               job_chunk_bytes(job, job->lent.chunk));
    }
    if (job->made.at) {
        memcpy(job_mean_at(job, job->made.chunk), job->made.at,
               job_chunk_bytes(job, job->made.chunk));
    }
    job->lent.at = job->made.at = NULL;
}

void job_made_sent(struct job *job)
{
    job->made.at = NULL;
}

void job_link_gone(struct job *job)
{
    job->lent.at = job->made.at = NULL;
}

/* ---- the owner's sum --------------------------------------------------------------------- */

/* The encoded chunk of a member's delta; ours is made tile by tile. */
static const uint8_t *source_of(const struct job *job, uint32_t slot, uint32_t chunk)
{
    bool lent = job->lent.at && job->lent.slot == slot && job->lent.chunk == chunk;
    return lent ? job->lent.at : job_inbox_at(job, slot, chunk);
}

/* A member's part of the tile; NULL: it contributes nothing. */
static const void *source_at(const struct job *job, uint32_t slot, uint32_t chunk,
                             const struct job_tile *tile)
{
    if (job->round.weights[slot] == 0) {
        return NULL;
    }
    return slot == job->round.slot ? job->tiles->own : source_of(job, slot, chunk) + tile->byte;
}

static void reduce_integers(struct job *job, uint32_t index, const struct job_tile *tile,
                            uint8_t *bytes)
{
    const struct vec *vec = cpu_vec();
    int64_t *out = (int64_t *)(void *)bytes;
    MUST(out != NULL);
    bool any = false;
    for (uint32_t slot = 0; slot < job->round.plan.members; slot++) {
        const int64_t *in = source_at(job, slot, index, tile);
        if (in && any) {
            vec->max_i64(out, out, in, tile->count);
        } else if (in) {
            memcpy(out, in, tile->bytes);
        }
        any = any || in;
    }
    if (!any) {
        uint64_t first = tile->flat - layout_floats(&job->layout);
        memcpy(out, (const int64_t *)job->integers.base + first, tile->bytes);
    }
}

static int reduce_floats(struct job *job, uint32_t index, const struct job_tile *tile, uint8_t *out)
{
    const void *sources[SOLO_MEMBERS_MAX];
    for (uint32_t slot = 0; slot < job->round.plan.members; slot++) {
        sources[slot] = source_at(job, slot, index, tile);
    }
    bool lossy = tile->section == SOLO_PARAM && job->owner_residual.base;
    struct codec_mean mean = {
        .sources = sources,
        .weights = job->round.weights,
        .source_count = job->round.plan.members,
        .residual = lossy && job->round.keep_residuals
                        ? (float *)job->owner_residual.base + tile->flat
                        : NULL,
        .count = tile->count,
    };
    size_t bad;
    if (codec_reduce(job_codec(job, tile->section), &mean, out, &bad) < 0) {
        struct layout_run run = layout_run_at(&job->layout, tile->flat + bad, 1);
        return err_set(SOLO_ENONFINITE, "%s (in the mean)", run.tensor->name);
    }
    return 0;
}

static int reduce_tile(struct job *job, uint32_t index, const struct job_tile *tile, uint8_t *out)
{
    if (job->round.weights[job->round.slot] != 0) {
        TRY(job_encode_tile(job, tile, job->tiles->own));
        job_note_delta(job, index, tile, job->tiles->own);
    }
    if (tile->section == SOLO_MAX) {
        reduce_integers(job, index, tile, out);
        return 0;
    }
    return reduce_floats(job, index, tile, out);
}

/* The delta of the only other member, if it and we contribute; else NULL. */
static const uint8_t *lone_other(const struct job *job, uint32_t index, const struct job_tile *tile)
{
    const struct job_round *round = &job->round;
    bool both = round->plan.members == 2 && round->weights[0] != 0 && round->weights[1] != 0;
    return both ? source_of(job, 1 - round->slot, index) + tile->byte : NULL;
}

/* The mean of a tile, hashed, and the outer step with it. `room`: where it goes in a link's memory,
 * or NULL. */
static int finish_tile(struct job *job, uint32_t index, const struct job_tile *tile, uint8_t *out,
                       uint8_t *room, struct digest *digest)
{
    const uint8_t *other = lone_other(job, index, tile);
    if (other && job_pass_sum(job, tile, other, room ? room : out, digest)) {
        if (tile->first == 0) { /* again, from the cache, to be looked at */
            TRY(job_encode_tile(job, tile, job->tiles->own));
            job_note_delta(job, index, tile, job->tiles->own);
        }
        return 0;
    }
    TRY(reduce_tile(job, index, tile, out));
    digest_feed(digest, out, tile->bytes);
    job_step(job, tile, out);
    if (room) { /* only now: what lies there the other process can change */
        memcpy(room, out, tile->bytes);
    }
    return 0;
}

int job_reduce(struct job *job, uint32_t index, void *room)
{
    struct plan_chunk chunk = plan_chunk(&job->round.plan, index);
    /* Alone nobody is sent the mean. */
    uint8_t *waits = room || job->round.plan.members == 1 ? NULL : job_mean_at(job, index);
    struct digest digest;
    digest_begin(&digest, index);
    for (struct job_tile tile = {0}; job_tile_next(job, &chunk, &tile);) {
        uint8_t *out = waits ? waits + tile.byte : job->tiles->mean;
        uint8_t *place = room ? (uint8_t *)room + tile.byte : NULL;
        TRY(finish_tile(job, index, &tile, out, place, &digest));
    }
    job->mean_digest += digest_end(&digest);
    job->lent.at = NULL;
    job->made.chunk = index;
    job->made.at = room;
    return 0;
}

/* ---- means ------------------------------------------------------------------------------- */

const void *job_mean(const struct job *job, uint32_t chunk, uint32_t *size_out)
{
    *size_out = job_chunk_bytes(job, chunk);
    bool made = job->made.at && job->made.chunk == chunk;
    return made ? job->made.at : job_mean_at(job, chunk);
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

int job_take_mean(struct job *job, uint32_t index, const void *bytes)
{
    struct plan_chunk chunk = plan_chunk(&job->round.plan, index);
    bool waits = bytes == job_mean_at(job, index);
    struct digest digest;
    digest_begin(&digest, index);
    for (struct job_tile tile = {0}; job_tile_next(job, &chunk, &tile);) {
        const uint8_t *mean = (const uint8_t *)bytes + tile.byte;
        if (job_pass_mean(job, &tile, mean, &digest)) {
            continue;
        }
        if (!waits) { /* read once: what is checked is what is hashed and applied */
            memcpy(job->tiles->mean, mean, tile.bytes);
            mean = job->tiles->mean;
        }
        if (tile.section != SOLO_MAX) {
            TRY(codec_check(job_codec(job, tile.section), mean, tile.bytes, tile.count));
        }
        digest_feed(&digest, mean, tile.bytes);
        job_step(job, &tile, mean);
    }
    job->mean_digest += digest_end(&digest);
    return 0;
}
