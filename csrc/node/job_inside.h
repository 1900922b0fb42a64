/* job_inside.h - what the files job*.c share: where chunks and blocks lie. */
#ifndef SOLO_NODE_JOB_INSIDE_H
#define SOLO_NODE_JOB_INSIDE_H

#include "node/job.h"

/* JOB_BLOCK_ELEMENTS of a section, or what is left of it. */
struct job_block {
    enum solo_role section;
    uint64_t first; /* element, from the start of the section */
    uint64_t start; /* the same, from the start of the flat space */
    uint64_t count;
};

/* At most JOB_TILE_ELEMENTS of a chunk. */
struct job_tile {
    enum solo_role section;
    uint64_t flat;         /* its first flat element */
    uint32_t first, count; /* elements, in the chunk */
    uint64_t byte, bytes;  /* of the encoded chunk */
};

struct job_tiles { /* one of each, in the cache */
    _Alignas(64) uint8_t own[JOB_TILE_ELEMENTS * 8];
    uint8_t mean[JOB_TILE_ELEMENTS * 8];
    float anchor[JOB_TILE_ELEMENTS], momentum[JOB_TILE_ELEMENTS];
};

/* for (struct job_tile tile = {0}; job_tile_next(job, chunk, &tile);) */
bool job_tile_next(const struct job *job, const struct plan_chunk *chunk, struct job_tile *tile);

const struct codec *job_codec(const struct job *job, enum solo_role section);
uint64_t job_bytes_of(const struct job *job, struct plan_chunk chunk);
uint64_t job_flat(const struct job *job, struct plan_chunk chunk); /* its first flat element */

uint8_t *job_mean_at(const struct job *job, uint32_t chunk);                 /* where it waits */
uint8_t *job_inbox_at(const struct job *job, uint32_t slot, uint32_t chunk); /* one we own */

int job_encode_tile(struct job *job, const struct job_tile *tile, uint8_t *out);
void job_note_delta(struct job *job, uint32_t chunk, const struct job_tile *tile,
                    const uint8_t *bytes);
void job_take_next(struct job *job); /* the next anchor is the anchor, and the other way round */
/* The outer step with a tile of the mean, into the next anchor. */
void job_step(struct job *job, const struct job_tile *tile, const uint8_t *mean);
/* The same, and what comes before it, in one pass: the mean's check and digest; and of two members'
 * deltas the mean itself. false: this tile is not of that kind, or a value is not finite, which the
 * single steps tell. */
bool job_pass_mean(struct job *job, const struct job_tile *tile, const void *mean,
                   struct digest *digest);
bool job_pass_sum(struct job *job, const struct job_tile *tile, const void *other, uint8_t *mean,
                  struct digest *digest);

#define JOB_DIGEST_MOMENTUM (UINT64_C(1) << 40) /* block numbers of the momentum begin here */
/* Chunks as large as blocks are blocks: their digests are had while they are in the cache. */
bool job_chunks_are_blocks(const struct job *job);
/* Copies, past the caches if the model is larger than they are. */
void job_put(const struct job *job, void *to, const void *from, size_t size);
void job_look_ahead(const float *from);
/* The caller's values of a tile as fp32: where they are, if they lie there so, or in tiles->own. */
const float *job_local(struct job *job, const struct job_tile *tile);

/* Fills job->pieces with the caller's memory of a flat range; how many. */
size_t job_pieces(struct job *job, uint64_t start, uint64_t count, void *const *data);
struct job_block job_block(const struct job *job, uint64_t index);

/* Integer buffers between the caller's dtypes and int64. */
void job_integers_out(struct job *job, int64_t *out, uint64_t start, uint64_t count,
                      void *const *data);
void job_integers_in(struct job *job, const int64_t *in, uint64_t start, uint64_t count,
                     void *const *data);

/* The digest's share of one block of the anchor and its momentum. */
uint64_t job_block_digest(const struct job *job, uint64_t index, const float *theta,
                          const int64_t *integers, const float *momentum);

#endif
