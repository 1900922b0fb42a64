/* ckpt_fuzz.h - one input as a checkpoint: opened, then everything it says is looked at.
 *
 * What is promised of a file without faults is checked here: every storage lies inside the
 * file, every tensor inside its storage, every name belongs to a tensor. */
#ifndef SOLO_TESTS_CKPT_FUZZ_H
#define SOLO_TESTS_CKPT_FUZZ_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "solo_ckpt.h"

struct fuzz_input {
    const uint8_t *bytes;
    size_t size;
};

static int fuzz_read(void *context, uint64_t offset, void *bytes, size_t count)
{
    const struct fuzz_input *input = context;
    if (offset > input->size || count > input->size - offset) {
        abort(); /* a parser asked for bytes outside the file */
    }
    memcpy(bytes, input->bytes + offset, count);
    return 0;
}

static void fuzz_check(const struct solo_ckpt *ckpt, size_t file_bytes)
{
    const struct solo_ckpt_storage *storages;
    const struct solo_ckpt_tensor *tensors;
    const struct solo_ckpt_name *names;
    size_t storage_count = solo_ckpt_storages(ckpt, &storages);
    size_t tensor_count = solo_ckpt_tensors(ckpt, &tensors);
    size_t name_count = solo_ckpt_names(ckpt, &names);
    for (size_t i = 0; i < storage_count; i++) {
        if (storages[i].packed_bytes > file_bytes ||
            storages[i].offset > file_bytes - storages[i].packed_bytes) {
            abort();
        }
    }
    for (size_t i = 0; i < tensor_count; i++) {
        const struct solo_ckpt_tensor *row = &tensors[i];
        if (row->storage >= storage_count) {
            abort();
        }
        uint32_t bits;
        solo_ckpt_dtype(row->dtype, &bits);
        __uint128_t last = row->first, elements = 1;
        for (uint32_t d = 0; d < row->dims; d++) {
            elements *= row->sizes[d];
            last += row->sizes[d] ? (__uint128_t)(row->sizes[d] - 1) * row->strides[d] : 0;
        }
        if (elements && (last + 1) * bits / 8 > storages[row->storage].bytes) {
            abort();
        }
    }
    for (size_t i = 0; i < name_count; i++) {
        if (names[i].tensor >= tensor_count || names[i].key_at > names[i].bytes) {
            abort();
        }
    }
}

/* Visits values down to a depth; shared ones again and again, so with a budget. */
static void fuzz_walk(const struct solo_ckpt *ckpt, uint64_t value, int depth, int *budget)
{
    struct solo_ckpt_value is;
    if (depth > 40 || (*budget)-- <= 0) {
        return;
    }
    solo_ckpt_value_get(ckpt, value, &is);
    if (is.bytes && memchr(is.bytes, 0x11, is.size) == is.bytes + is.size) {
        abort(); /* never: the point is that every byte of a text is read */
    }
    if (is.type < SOLO_CKPT_TUPLE || is.type > SOLO_CKPT_CALL) {
        return;
    }
    if (is.type == SOLO_CKPT_CALL) {
        fuzz_walk(ckpt, is.function, depth + 1, budget);
        fuzz_walk(ckpt, is.arguments, depth + 1, budget);
        if (is.state != SOLO_CKPT_NONE) {
            fuzz_walk(ckpt, is.state, depth + 1, budget);
        }
    }
    uint64_t cursor = 0;
    const uint64_t *items;
    for (size_t count; (count = solo_ckpt_items(ckpt, value, &cursor, &items)) > 0;) {
        for (size_t i = 0; i<count && * budget> 0; i++) {
            fuzz_walk(ckpt, items[i], depth + 1, budget);
        }
    }
}

static inline void fuzz_open(const uint8_t *bytes, size_t size,
                             const struct solo_ckpt_options *options)
{
    struct fuzz_input input = {bytes, size};
    struct solo_ckpt_source source = {.context = &input, .size = size, .read = fuzz_read};
    struct solo_ckpt *ckpt;
    if (solo_ckpt_open(&source, options, &ckpt) < 0) {
        return;
    }
    struct solo_ckpt_fault fault;
    for (uint32_t i = 0; solo_ckpt_fault_get(ckpt, i, &fault) == 0; i++) {
        if (!memchr(fault.text, 0, sizeof fault.text)) {
            abort();
        }
    }
    if (!solo_ckpt_fault_count(ckpt)) {
        fuzz_check(ckpt, size);
    }
    int budget = 20000;
    if (solo_ckpt_root(ckpt) != SOLO_CKPT_NONE) {
        fuzz_walk(ckpt, solo_ckpt_root(ckpt), 0, &budget);
    }
    solo_ckpt_close(ckpt);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#endif
