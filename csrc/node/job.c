/* The areas of a job, and where in them a chunk lies. The stages of a round are in
 * job_encode.c, job_reduce.c and job_apply.c, an anchor's way to and from others in
 * job_serve.c. */
#include "node/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "node/job_inside.h"

static uint64_t section_bytes(const struct job *job, enum solo_role section, uint64_t count)
{
    if (section == SOLO_MAX) {
        return count * sizeof(int64_t);
    }
    return codec_bytes(job_codec(job, section), count);
}

const struct codec *job_codec(const struct job *job, enum solo_role section)
{
    return section == SOLO_PARAM ? job->codec : codec_exact();
}

uint64_t job_bytes_of(const struct job *job, struct plan_chunk chunk)
{
    return section_bytes(job, chunk.section, chunk.elements);
}

uint64_t job_flat(const struct job *job, struct plan_chunk chunk)
{
    return job->layout.section_start[chunk.section] + chunk.first;
}

/* ---- memory ---------------------------------------------------------------------------- */

#define STREAM_BYTES (16u << 20) /* a smaller model may be in the cache when it is used again */

static uint64_t floats_bytes(const struct layout *layout)
{
    return layout_floats(layout) * sizeof(float);
}

static uint64_t momentum_bytes(const struct layout *layout, const struct rule *rule)
{
    return rule_has_momentum(rule) ? layout->section_start[SOLO_MEAN] * sizeof(float) : 0;
}

static uint64_t residual_bytes(const struct layout *layout, const struct codec *codec)
{
    return codec_has_residual(codec) ? layout->section_start[SOLO_EXACT] * sizeof(float) : 0;
}

uint64_t job_bytes(const struct layout *layout, const struct job_config *config)
{
    const struct codec *codec = NULL;
    if (codec_find(config->codec, &codec) < 0) {
        codec = codec_exact();
    }
    uint64_t parameters = layout->section_start[SOLO_EXACT];
    uint64_t exact = layout_floats(layout) - parameters, integers = layout_integers(layout) * 8;
    uint64_t encoded = codec_bytes(codec, parameters) + exact * sizeof(float) + integers;
    uint64_t residual = residual_bytes(layout, codec);
    uint64_t anchor = floats_bytes(layout) + integers + momentum_bytes(layout, &config->rule);
    /* inbox and mean are one model together, or two if every mean waits encoded */
    uint64_t waiting = (codec_has_residual(codec) ? 2 : 1) * encoded;
    return 2 * anchor + 2 * residual + waiting + encoded / PLAN_CHUNKS_PER_OWNER +
           sizeof(struct job_tiles) + layout->tensor_count * sizeof(struct layout_tensor);
}

static int open_areas(struct job *job)
{
    const struct layout *layout = &job->layout;
    uint64_t residual = residual_bytes(layout, job->codec);
    uint64_t integers = layout_integers(layout) * 8, momentum = momentum_bytes(layout, &job->rule);
    TRY(area_open(&job->theta, floats_bytes(layout), "the anchor"));
    TRY(area_open(&job->integers, integers, "the integer buffers"));
    TRY(area_open(&job->momentum, momentum, "the outer momentum"));
    TRY(area_open(&job->next_theta, floats_bytes(layout), "the next anchor"));
    TRY(area_open(&job->next_integers, integers, "the next integer buffers"));
    TRY(area_open(&job->next_momentum, momentum, "the next outer momentum"));
    TRY(area_open(&job->residual, residual, "the codec's residual"));
    TRY(area_open(&job->owner_residual, residual, "the owner's residual"));
    job->pieces = malloc((layout->tensor_count + 1) * sizeof *job->pieces);
    size_t block_bytes = codec_bytes(job->codec, JOB_BLOCK_ELEMENTS);
    job->scratch[0] = malloc(block_bytes);
    job->scratch[1] = malloc(block_bytes);
    job->tiles = aligned_alloc(64, sizeof *job->tiles);
    job->block_digests = calloc(job->blocks[LAYOUT_SECTIONS] + 1, sizeof *job->block_digests);
    if (!job->block_digests || !job->pieces || !job->scratch[0] || !job->scratch[1] ||
        !job->tiles) {
        return err_set(SOLO_ENOMEM, "no memory for the table of %zu tensors", layout->tensor_count);
    }
    return 0;
}

int job_open(struct job *job, struct layout *layout, const struct job_config *config)
{
    *job = (struct job){.layout = *layout, .rule = config->rule};
    job->stream = floats_bytes(layout) >= STREAM_BYTES;
    struct plan_model model;
    for (unsigned section = 0; section < LAYOUT_SECTIONS; section++) {
        model.elements[section] =
            layout->section_start[section + 1] - layout->section_start[section];
        uint64_t blocks = (model.elements[section] + JOB_BLOCK_ELEMENTS - 1) / JOB_BLOCK_ELEMENTS;
        job->blocks[section + 1] = job->blocks[section] + blocks;
    }
    int rc = codec_find(config->codec, &job->codec);
    rc = rc < 0 ? rc : plan_init_state(&job->state_plan, &model);
    rc = rc < 0 ? rc : open_areas(job);
    if (rc < 0) {
        job_close(job);
    }
    return rc;
}

#define AREAS 10

void job_close(struct job *job)
{
    struct area *const areas[AREAS] = {
        &job->theta, &job->integers, &job->momentum,   &job->residual,      &job->owner_residual,
        &job->inbox, &job->mean,     &job->next_theta, &job->next_integers, &job->next_momentum,
    };
    for (size_t i = 0; i < AREAS; i++) {
        area_close(areas[i]);
    }
    free(job->pieces);
    free(job->scratch[0]);
    free(job->scratch[1]);
    free(job->tiles);
    free(job->block_digests);
    free(job->offsets);
    layout_deinit(&job->layout);
    memset(job, 0, sizeof *job);
}

/* ---- a round's map --------------------------------------------------------------------- */

/* Chunks begin on cache lines, so that integers are aligned after encodings of odd sizes. */
static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

/* Whether deltas and means of this chunk wait in the next anchor. */
static bool waits_in_next(const struct job *job, uint32_t chunk, enum solo_role section)
{
    bool plain = section == SOLO_MAX || !codec_has_residual(job_codec(job, section));
    return plain && !job_owns(job, chunk);
}

static int map_chunks(struct job *job)
{
    uint32_t count = job->round.plan.chunk_count;
    if (count + 1 > job->offset_capacity) {
        uint64_t *grown = realloc(job->offsets, (count + 1) * sizeof *grown);
        if (!grown) {
            return err_set(SOLO_ENOMEM, "no memory for the map of %u chunks", count);
        }
        job->offsets = grown;
        job->offset_capacity = count + 1;
    }
    uint64_t offset = 0;
    for (uint32_t chunk = 0; chunk < count; chunk++) {
        struct plan_chunk place = plan_chunk(&job->round.plan, chunk);
        job->offsets[chunk] = offset;
        offset += waits_in_next(job, chunk, place.section) ? 0 : aligned(job_bytes_of(job, place));
    }
    job->offsets[count] = offset;
    return 0;
}

int job_begin(struct job *job, const struct job_round *round, void *const *data)
{
    job->round = *round;
    job->data = data;
    job->mean_digest = job->delta_digest = 0;
    job->made.at = job->lent.at = NULL;
    job->own_first = plan_owned_first(&round->plan, round->slot);
    job->own_count = plan_owned_count(&round->plan, round->slot);
    TRY(map_chunks(job));
    uint64_t own = job->offsets[job->own_first + job->own_count] - job->offsets[job->own_first];
    uint32_t others = round->plan.members - 1;
    uint64_t means = others ? job->offsets[round->plan.chunk_count] : 0; /* alone: sent to nobody */
    TRY(area_reserve(&job->mean, means, "the encoded mean"));
    return area_reserve(&job->inbox, own * others, "the members' deltas");
}

int job_warm(struct job *job)
{
    struct job_round two = {0};
    TRY(plan_init(&two.plan, &job->state_plan.model, 2, PLAN_MESH));
    for (two.slot = 0; two.slot < 2; two.slot++) { /* one of them owns a little more */
        TRY(job_begin(job, &two, NULL));
    }
    const struct area *const areas[] = {
        &job->theta,      &job->integers,      &job->momentum,      &job->inbox,    &job->mean,
        &job->next_theta, &job->next_integers, &job->next_momentum, &job->residual,
    };
    for (size_t i = 0; i < sizeof areas / sizeof *areas; i++) {
        area_populate(areas[i]);
    }
    return 0;
}

bool job_owns(const struct job *job, uint32_t chunk)
{
    return chunk >= job->own_first && chunk - job->own_first < job->own_count;
}

uint8_t *job_mean_at(const struct job *job, uint32_t chunk)
{
    struct plan_chunk place = plan_chunk(&job->round.plan, chunk);
    uint64_t flat = job_flat(job, place);
    if (!waits_in_next(job, chunk, place.section)) {
        return (uint8_t *)job->mean.base + job->offsets[chunk];
    }
    return place.section == SOLO_MAX
               ? (uint8_t *)job->next_integers.base + 8 * (flat - layout_floats(&job->layout))
               : (uint8_t *)job->next_theta.base + sizeof(float) * flat;
}

uint8_t *job_inbox_at(const struct job *job, uint32_t slot, uint32_t chunk)
{
    uint64_t first = job->offsets[job->own_first];
    uint64_t own = job->offsets[job->own_first + job->own_count] - first;
    uint32_t place = slot - (slot > job->round.slot); /* ours is not there */
    return (uint8_t *)job->inbox.base + place * own + (job->offsets[chunk] - first);
}

bool job_tile_next(const struct job *job, const struct plan_chunk *chunk, struct job_tile *tile)
{
    uint32_t first = tile->first + tile->count;
    uint32_t left = chunk->elements - first;
    tile->section = chunk->section;
    tile->first = first;
    tile->count = left < JOB_TILE_ELEMENTS ? left : JOB_TILE_ELEMENTS;
    tile->flat = job_flat(job, *chunk) + first;
    tile->byte += tile->bytes;
    tile->bytes = section_bytes(job, chunk->section, tile->count);
    return tile->count > 0;
}

uint32_t job_chunk_bytes(const struct job *job, uint32_t chunk)
{
    return (uint32_t)job_bytes_of(job, plan_chunk(&job->round.plan, chunk));
}

/* ---- the caller's tensors -------------------------------------------------------------- */

size_t job_pieces(struct job *job, uint64_t start, uint64_t count, void *const *data)
{
    size_t pieces = 0;
    while (count) {
        struct layout_run run = layout_run_at(&job->layout, start, count);
        enum solo_dtype dtype = run.tensor->dtype;
        job->pieces[pieces++] = (struct codec_piece){
            .data = (uint8_t *)data[run.tensor->index] + run.offset * solo_dtype_bytes(dtype),
            .count = run.count,
            .dtype = dtype,
        };
        start += run.count;
        count -= run.count;
    }
    return pieces;
}

struct job_block job_block(const struct job *job, uint64_t index)
{
    unsigned section = 0;
    while (job->blocks[section + 1] <= index) {
        section++;
    }
    uint64_t first = (index - job->blocks[section]) * JOB_BLOCK_ELEMENTS;
    uint64_t start = job->layout.section_start[section] + first;
    uint64_t left = job->layout.section_start[section + 1] - start;
    return (struct job_block){(enum solo_role)section, first, start,
                              left < JOB_BLOCK_ELEMENTS ? left : JOB_BLOCK_ELEMENTS};
}
