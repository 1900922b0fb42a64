#include "node/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static const char *const role_names[] = {"param", "exact", "mean", "max"};

static int is_float(enum solo_dtype dtype)
{
    return dtype == SOLO_F32 || dtype == SOLO_F64 || dtype == SOLO_F16 || dtype == SOLO_BF16;
}

static int is_integer(enum solo_dtype dtype)
{
    return dtype == SOLO_I8 || dtype == SOLO_U8 || dtype == SOLO_I16 || dtype == SOLO_U16 ||
           dtype == SOLO_I32 || dtype == SOLO_U32 || dtype == SOLO_I64 || dtype == SOLO_BOOL;
}

static int check_tensor(const struct solo_tensor *tensor, size_t index)
{
    if (!tensor->name || !tensor->name[0]) {
        return err_set(SOLO_EINVAL, "tensor %zu of the model has no name", index);
    }
    if ((unsigned)tensor->role > SOLO_MAX || (unsigned)tensor->dtype >= SOLO_DTYPE_COUNT) {
        return err_set(SOLO_EINVAL, "tensor %.200s has an unknown role or dtype", tensor->name);
    }
    int fits = tensor->role == SOLO_MAX ? is_integer(tensor->dtype) : is_float(tensor->dtype);
    if (!fits) {
        return err_set(SOLO_EINVAL,
                       "tensor %.200s is %s, which cannot be merged as '%s': means need "
                       "float16, bfloat16, float32 or float64, maxima integers up to 64 bits",
                       tensor->name, solo_dtype_name(tensor->dtype), role_names[tensor->role]);
    }
    if (tensor->count > LAYOUT_ELEMENTS_MAX) {
        return err_set(SOLO_ELIMIT, "tensor %.200s has %" PRIu64 " elements; the limit is 2^40",
                       tensor->name, tensor->count);
    }
    return 0;
}

/* FNV-1a, 64 bits: speed does not matter, the same answer everywhere does. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static uint64_t hash_u64(uint64_t hash, uint64_t value)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    return hash_bytes(hash, bytes, sizeof bytes);
}

static uint64_t hash_tensor(uint64_t hash, const struct solo_tensor *tensor)
{
    hash = hash_bytes(hash, tensor->name, strlen(tensor->name) + 1);
    hash = hash_u64(hash, tensor->count);
    return hash_u64(hash, (uint64_t)tensor->dtype << 8 | (uint64_t)tensor->role);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names are the identity of tensors between nodes, so each may be there only once. */
static int check_names(const struct solo_tensor *tensors, size_t count)
{
    const char **names = malloc((count + 1) * sizeof *names);
    if (!names) {
        return err_set(SOLO_ENOMEM, "no memory for the names of %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        names[i] = tensors[i].name;
    }
    qsort(names, count, sizeof *names, compare_names);
    int rc = 0;
    for (size_t i = 1; i < count && rc == 0; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            rc = err_set(SOLO_EINVAL, "two tensors of the model are named %.200s", names[i]);
        }
    }
    free(names);
    return rc;
}

static void write_words(struct layout *layout)
{
    uint64_t by_dtype[SOLO_DTYPE_COUNT] = {0};
    for (size_t i = 0; i < layout->tensor_count; i++) {
        by_dtype[layout->tensors[i].dtype] += layout->tensors[i].count;
    }
    int used = snprintf(layout->words, sizeof layout->words, "%zu tensors", layout->caller_count);
    for (int dtype = 0; dtype < SOLO_DTYPE_COUNT; dtype++) {
        if (by_dtype[dtype] && used > 0 && (size_t)used < sizeof layout->words) {
            used += snprintf(layout->words + used, sizeof layout->words - (size_t)used,
                             ", %" PRIu64 " %s", by_dtype[dtype],
                             solo_dtype_name((enum solo_dtype)dtype));
        }
    }
    if (used > 0 && (size_t)used < sizeof layout->words) {
        snprintf(layout->words + used, sizeof layout->words - (size_t)used, " (%08x)",
                 (unsigned)(layout->hash ^ layout->hash >> 32));
    }
}

static void place_tensor(struct layout *layout, const struct solo_tensor *from, size_t index,
                         uint64_t *start)
{
    layout->place[index] = (uint32_t)layout->tensor_count;
    struct layout_tensor *to = &layout->tensors[layout->tensor_count++];
    snprintf(to->name, sizeof to->name, "%s", from->name);
    to->start = *start;
    to->count = from->count;
    to->index = (uint32_t)index;
    to->dtype = from->dtype;
    to->role = from->role;
    *start += from->count;
}

static int place_all(struct layout *layout, const struct solo_tensor *tensors)
{
    uint64_t start = 0;
    for (unsigned section = 0; section < LAYOUT_SECTIONS; section++) {
        layout->section_start[section] = start;
        for (size_t i = 0; i < layout->caller_count; i++) {
            if ((unsigned)tensors[i].role == section && tensors[i].count) {
                place_tensor(layout, &tensors[i], i, &start);
            }
            if (start > LAYOUT_ELEMENTS_MAX) {
                return err_set(SOLO_ELIMIT, "the model has more than 2^40 elements");
            }
        }
    }
    layout->section_start[LAYOUT_SECTIONS] = start;
    return 0;
}

int layout_init(struct layout *layout, const struct solo_tensor *tensors, size_t count)
{
    *layout = (struct layout){.caller_count = count};
    if (count > LAYOUT_TENSORS_MAX) {
        return err_set(SOLO_ELIMIT, "the model has %zu tensors; the limit is %u", count,
                       LAYOUT_TENSORS_MAX);
    }
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count; i++) {
        TRY(check_tensor(&tensors[i], i));
        hash = hash_tensor(hash, &tensors[i]);
    }
    TRY(check_names(tensors, count));
    layout->hash = hash;
    layout->tensors = calloc(count + 1, sizeof *layout->tensors);
    layout->place = malloc((count + 1) * sizeof *layout->place);
    if (!layout->tensors || !layout->place) {
        layout_deinit(layout);
        return err_set(SOLO_ENOMEM, "no memory for a table of %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        layout->place[i] = LAYOUT_NONE;
    }
    int rc = place_all(layout, tensors);
    if (rc < 0) {
        layout_deinit(layout);
        return rc;
    }
    write_words(layout);
    return 0;
}

void layout_deinit(struct layout *layout)
{
    free(layout->tensors);
    free(layout->place);
    layout->tensors = NULL;
    layout->place = NULL;
}

struct layout_run layout_run_at(const struct layout *layout, uint64_t start, uint64_t count)
{
    size_t low = 0, high = layout->tensor_count; /* the last tensor that begins at or before */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (layout->tensors[middle].start <= start) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const struct layout_tensor *tensor = &layout->tensors[low];
    MUST(count > 0 && start >= tensor->start && start < tensor->start + tensor->count);
    uint64_t offset = start - tensor->start, left = tensor->count - offset;
    return (struct layout_run){tensor, offset, start, count < left ? count : left};
}
