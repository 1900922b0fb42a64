/* layout.h - the tensors of a model as one flat space of elements.
 *
 * Sections in the order A, B, C, D (SOLO_PARAM, SOLO_EXACT, SOLO_MEAN, SOLO_MAX); inside a
 * section the tensors lie in the caller's order, without gaps. A to C are fp32 elements, D
 * is int64. Two nodes may merge if their layouts have the same hash.
 *
 * Threads: immutable after layout_init. Memory: one array per model, freed by layout_deinit. */
#ifndef SOLO_NODE_LAYOUT_H
#define SOLO_NODE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "solo.h"

#define LAYOUT_SECTIONS     4u
#define LAYOUT_TENSORS_MAX  (1u << 20) /* 64 MiB of table */
#define LAYOUT_ELEMENTS_MAX (UINT64_C(1) << 40)
#define LAYOUT_WORDS_MAX    96u

struct layout_tensor {
    char name[SOLO_NAME_MAX]; /* cut at the limit; the hash covers all of it */
    uint64_t start, count;    /* elements of the flat space */
    uint32_t index;           /* place in the caller's order */
    enum solo_dtype dtype;
    enum solo_role role;
};

struct layout {
    struct layout_tensor *tensors; /* in flat order, empty ones left out */
    size_t tensor_count;           /* of `tensors` */
    uint32_t *place;               /* caller's index -> index in `tensors`, or LAYOUT_NONE */
    size_t caller_count;
    uint64_t section_start[LAYOUT_SECTIONS + 1]; /* elements; the last is the total */
    uint64_t hash;
    char words[LAYOUT_WORDS_MAX]; /* what the hash stands for, for a refusal's text */
};
#define LAYOUT_NONE UINT32_MAX

/* A piece of one tensor: `count` elements from its element `offset` on, at flat element
 * `start`. */
struct layout_run {
    const struct layout_tensor *tensor;
    uint64_t offset, start, count;
};

/* SOLO_EINVAL: a role that a dtype cannot have, a duplicate name; SOLO_ELIMIT. */
int layout_init(struct layout *layout, const struct solo_tensor *tensors, size_t count);
void layout_deinit(struct layout *layout);

static inline uint64_t layout_elements(const struct layout *layout)
{
    return layout->section_start[LAYOUT_SECTIONS];
}

/* Elements of the sections A to C, which have fp32 values. */
static inline uint64_t layout_floats(const struct layout *layout)
{
    return layout->section_start[SOLO_MAX];
}

/* Elements of section D. */
static inline uint64_t layout_integers(const struct layout *layout)
{
    return layout_elements(layout) - layout_floats(layout);
}

/* The first run of the flat elements [start, start + count), count > 0; the following ones
 * are had by calling again with what is left. */
struct layout_run layout_run_at(const struct layout *layout, uint64_t start, uint64_t count);

#endif
