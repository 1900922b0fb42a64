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

const struct codec *job_codec(const struct job *job, enum solo_role section);
uint64_t job_bytes_of(const struct job *job, struct plan_chunk chunk);
uint64_t job_flat(const struct job *job, struct plan_chunk chunk); /* its first flat element */

uint32_t job_chunk_bytes(const struct job *job, uint32_t chunk);
uint8_t *job_mean_at(const struct job *job, uint32_t chunk);
uint8_t *job_inbox_at(const struct job *job, uint32_t slot, uint32_t chunk); /* one we own */

/* The encoded chunk of a member's delta; ours is own_delta. */
const uint8_t *job_source(const struct job *job, uint32_t slot, uint32_t chunk);
int job_encode_into(struct job *job, uint32_t chunk, uint8_t *out);

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
