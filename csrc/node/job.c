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
    const struct codec *codec;
    if (codec_find(config->codec, &codec) < 0) {
        codec = codec_exact();
    }
    uint64_t parameters = layout->section_start[SOLO_EXACT];
    uint64_t exact = layout_floats(layout) - parameters, integers = layout_integers(layout) * 8;
    uint64_t encoded = codec_bytes(codec, parameters) + exact * sizeof(float) + integers;
    uint64_t residual = residual_bytes(layout, codec);
    return floats_bytes(layout) + integers + momentum_bytes(layout, &config->rule) + 2 * residual +
           2 * encoded + encoded / PLAN_CHUNKS_PER_OWNER +
           layout->tensor_count * sizeof(struct layout_tensor);
}

static int open_areas(struct job *job)
{
    const struct layout *layout = &job->layout;
    uint64_t residual = residual_bytes(layout, job->codec);
    TRY(area_open(&job->theta, floats_bytes(layout), "the anchor"));
    TRY(area_open(&job->integers, layout_integers(layout) * 8, "the integer buffers"));
    TRY(area_open(&job->momentum, momentum_bytes(layout, &job->rule), "the outer momentum"));
    TRY(area_open(&job->residual, residual, "the codec's residual"));
    TRY(area_open(&job->owner_residual, residual, "the owner's residual"));
    job->pieces = malloc((layout->tensor_count + 1) * sizeof *job->pieces);
    size_t block_bytes = codec_bytes(job->codec, JOB_BLOCK_ELEMENTS);
    job->scratch[0] = malloc(block_bytes);
    job->scratch[1] = malloc(block_bytes);
    job->own_delta = malloc((size_t)PLAN_CHUNK_ELEMENTS_MAX * 8); /* int64: the widest */
    if (!job->pieces || !job->scratch[0] || !job->scratch[1] || !job->own_delta) {
        return err_set(SOLO_ENOMEM, "no memory for the table of %zu tensors", layout->tensor_count);
    }
    return 0;
}

int job_open(struct job *job, struct layout *layout, const struct job_config *config)
{
    *job = (struct job){.layout = *layout, .rule = config->rule};
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

int job_warm(struct job *job)
{
    struct plan_model model = job->state_plan.model;
    uint64_t bytes = 0;
    for (unsigned section = 0; section < LAYOUT_SECTIONS; section++) {
        bytes += section_bytes(job, (enum solo_role)section, model.elements[section]);
    }
    bytes +=
        bytes / PLAN_CHUNKS_PER_OWNER; /* an owner's run may be a chunk longer than its share */
    TRY(area_reserve(&job->mean, bytes, "the encoded mean"));
    TRY(area_reserve(&job->inbox, bytes, "the members' deltas"));
    const struct area *const areas[] = {&job->theta, &job->integers, &job->momentum, &job->mean,
                                        &job->inbox};
    for (size_t i = 0; i < 5; i++) {
        area_populate(areas[i]);
    }
    return 0;
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
    free(job->own_delta);
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
        job->offsets[chunk] = offset;
        offset += aligned(job_bytes_of(job, plan_chunk(&job->round.plan, chunk)));
    }
    job->offsets[count] = offset;
    return 0;
}

int job_begin(struct job *job, const struct job_round *round, void *const *data)
{
    job->round = *round;
    job->data = data;
    job->mean_digest = 0;
    job->own_first = plan_owned_first(&round->plan, round->slot);
    job->own_count = plan_owned_count(&round->plan, round->slot);
    TRY(map_chunks(job));
    uint64_t own = job->offsets[job->own_first + job->own_count] - job->offsets[job->own_first];
    TRY(area_reserve(&job->mean, job->offsets[round->plan.chunk_count], "the encoded mean"));
    return area_reserve(&job->inbox, own * round->plan.members, "the members' deltas");
}

bool job_owns(const struct job *job, uint32_t chunk)
{
    return chunk >= job->own_first && chunk - job->own_first < job->own_count;
}

uint8_t *job_mean_at(const struct job *job, uint32_t chunk)
{
    return (uint8_t *)job->mean.base + job->offsets[chunk];
}

uint8_t *job_inbox_at(const struct job *job, uint32_t slot, uint32_t chunk)
{
    uint64_t first = job->offsets[job->own_first];
    uint64_t own = job->offsets[job->own_first + job->own_count] - first;
    return (uint8_t *)job->inbox.base + slot * own + (job->offsets[chunk] - first);
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
