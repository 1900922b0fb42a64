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
/* What was made of a tile, into a link's memory (NULL: nothing happens). */
void job_into_room(void *room, const struct job_tile *tile, const void *from);
void job_note_delta(struct job *job, uint32_t chunk, const struct job_tile *tile,
                    const uint8_t *bytes);
void job_take_next(struct job *job); /* the next anchor is the anchor, and the other way round */
/* The outer step with a tile of the mean, into the next anchor. */
void job_step(struct job *job, const struct job_tile *tile, const uint8_t *mean);

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
