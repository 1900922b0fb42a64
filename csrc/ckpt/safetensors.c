#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/dtypes.h"

#define DIMS_MAX 64u

struct entry {
    size_t text_at, shape_at; /* name in texts, sizes in shapes */
    uint32_t name_bytes, dims, dtype;
    uint64_t begin, end;
};

struct parse {
    struct safetensors *out;
    struct faults *faults;
    struct scan json;
    struct grown entries; /* struct entry */
    uint32_t tensors_max;
    uint64_t data_at, data_bytes;
};

static const char *name_of(const struct parse *parse, const struct entry *entry)
{
    return faults_name((char *)parse->out->texts.items + entry->text_at, entry->name_bytes);
}

static int broken(struct parse *parse)
{
    return FAULT(parse->faults, SOLO_CKPT_DAMAGED,
                 8 + (uint64_t)(parse->json.at - parse->json.start),
                 "the safetensors header is damaged: %s", parse->json.what);
}

static int take_name(struct parse *parse, struct scan_text text, struct entry *entry)
{
    struct grown *texts = &parse->out->texts;
    TRY(grow(texts, text.size + 1, 1));
    size_t size = scan_decode(text, (char *)texts->items + texts->count);
    if (size == SIZE_MAX || memchr((char *)texts->items + texts->count, 0, size)) {
        scan_fail(&parse->json, "a name has a broken escape or a zero byte");
        return broken(parse);
    }
    entry->text_at = texts->count;
    entry->name_bytes = (uint32_t)size;
    texts->count += size;
    return 0;
}

static int take_shape(struct parse *parse, struct entry *entry)
{
    bool first = true;
    entry->shape_at = parse->out->shapes.count;
    if (!scan_enter(&parse->json, '[')) {
        return broken(parse);
    }
    while (scan_element(&parse->json, &first)) {
        TRY(grow(&parse->out->shapes, 1, sizeof(uint64_t)));
        uint64_t *at = (uint64_t *)parse->out->shapes.items + parse->out->shapes.count++;
        if (!scan_uint(&parse->json, at)) {
            break;
        }
        if (++entry->dims > DIMS_MAX) {
            scan_fail(&parse->json, "a tensor has more than 64 dimensions");
        }
    }
    return parse->json.what ? broken(parse) : 0;
}

static int take_dtype(struct parse *parse, struct entry *entry)
{
    struct scan_text text;
    if (!scan_string(&parse->json, &text)) {
        return broken(parse);
    }
    entry->dtype = dtype_of_safetensors((const char *)text.at, text.size);
    if (entry->dtype == DTYPE_UNKNOWN) {
        FAULT(parse->faults, SOLO_CKPT_UNSUPPORTED, 8 + (uint64_t)(text.at - parse->json.start),
              "tensor %s has the dtype %s, which is not known here", name_of(parse, entry),
              faults_name(text.at, text.size));
    }
    return 0;
}

static int take_offsets(struct parse *parse, struct entry *entry)
{
    struct scan *json = &parse->json;
    bool first = true;
    bool ok = scan_enter(json, '[') && scan_element(json, &first) &&
              scan_uint(json, &entry->begin) && scan_element(json, &first) &&
              scan_uint(json, &entry->end) && !scan_element(json, &first) && !json->what;
    if (!ok) {
        scan_fail(json, "data_offsets are not two numbers");
        return broken(parse);
    }
    return 0;
}

static int take_entry(struct parse *parse, struct scan_text name)
{
    struct entry entry = {.dtype = DTYPE_UNKNOWN};
    TRY(take_name(parse, name, &entry));
    unsigned seen = 0;
    bool first = true;
    struct scan_text key;
    if (!scan_enter(&parse->json, '{')) {
        return broken(parse);
    }
    while (scan_key(&parse->json, &first, &key)) {
        unsigned bit = scan_is(key, "dtype")          ? 1
                       : scan_is(key, "shape")        ? 2
                       : scan_is(key, "data_offsets") ? 4
                                                      : 0;
        if (!bit || seen & bit) {
            scan_fail(&parse->json, "a tensor has a key that is unknown or there twice");
            break;
        }
        seen |= bit;
        TRY(bit == 1   ? take_dtype(parse, &entry)
            : bit == 2 ? take_shape(parse, &entry)
                       : take_offsets(parse, &entry));
    }
    if (parse->json.what || seen != 7) {
        scan_fail(&parse->json, "a tensor lacks its dtype, shape or data_offsets");
        return broken(parse);
    }
    if (parse->entries.count >= parse->tensors_max) {
        return FAULT(parse->faults, SOLO_CKPT_LIMIT, 8, "more than %u tensors", parse->tensors_max);
    }
    TRY(grow(&parse->entries, 1, sizeof entry));
    ((struct entry *)parse->entries.items)[parse->entries.count++] = entry;
    return 0;
}

/* str to str, as the format says; kept as text. */
static int take_note(struct parse *parse)
{
    struct scan_text unused;
    bool first = true;
    scan_peek(&parse->json);
    const uint8_t *start = parse->json.at;
    if (parse->out->note || !scan_enter(&parse->json, '{')) {
        scan_fail(&parse->json, "__metadata__ is there twice");
        return broken(parse);
    }
    while (scan_key(&parse->json, &first, &unused)) {
        if (!scan_string(&parse->json, &unused)) {
            break;
        }
    }
    parse->out->note = (const char *)start;
    parse->out->note_bytes = (size_t)(parse->json.at - start);
    return parse->json.what ? broken(parse) : 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct entry *left = a, *right = b;
    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    if (left->end != right->end) {
        return left->end < right->end ? -1 : 1;
    }
    return (left->text_at > right->text_at) - (left->text_at < right->text_at);
}

/* Elements, and whether they fill the range exactly. */
static void check_entry(struct parse *parse, const struct entry *entry)
{
    const uint64_t *shape = (uint64_t *)parse->out->shapes.items + entry->shape_at;
    if (entry->dtype == DTYPE_UNKNOWN) {
        return; /* said already */
    }
    uint64_t values = 1;
    for (uint32_t i = 0; i < entry->dims; i++) {
        values = multiply_capped(values, shape[i]);
    }
    uint32_t packed = dtype_packed(entry->dtype);
    uint64_t bits = multiply_capped(values / packed, dtype_bits(entry->dtype));
    bool whole = bits % 8 == 0 && values % packed == 0 &&
                 (packed == 1 || (entry->dims && shape[entry->dims - 1] % packed == 0));
    if (entry->end < entry->begin || !whole || bits == UINT64_MAX ||
        bits / 8 != entry->end - entry->begin) {
        FAULT(parse->faults, SOLO_CKPT_MISMATCH, add_capped(parse->data_at, entry->begin),
              "tensor %s has %" PRIu64 " elements but the bytes %" PRIu64 " to %" PRIu64,
              name_of(parse, entry), values, entry->begin, entry->end);
    }
}

/* By the format, tensors cover the data without hole or overlap. */
static void check_cover(struct parse *parse, bool allow_trailing)
{
    struct entry *entries = parse->entries.items;
    uint64_t at = 0;
    for (size_t i = 0; i < parse->entries.count; i++) {
        check_entry(parse, &entries[i]);
        if (entries[i].begin != at) {
            FAULT(parse->faults, entries[i].begin < at ? SOLO_CKPT_OVERLAP : SOLO_CKPT_DAMAGED,
                  add_capped(parse->data_at, entries[i].begin),
                  "tensor %s begins at byte %" PRIu64
                  " of the data, the one before it ends at %" PRIu64,
                  name_of(parse, &entries[i]), entries[i].begin, at);
        }
        at = entries[i].end > at ? entries[i].end : at;
    }
    if (at > parse->data_bytes) {
        FAULT(parse->faults, SOLO_CKPT_TRUNCATED, parse->data_at + parse->data_bytes,
              "the file ends after %" PRIu64 " bytes of data, its header describes %" PRIu64,
              parse->data_bytes, at);
    } else if (at < parse->data_bytes && !allow_trailing) {
        FAULT(parse->faults, SOLO_CKPT_DAMAGED, parse->data_at + at,
              "%" PRIu64 " bytes follow the last tensor (allow_trailing=True accepts them)",
              parse->data_bytes - at);
    }
}

static int compare_names(const void *a, const void *b)
{
    const struct solo_ckpt_name *left = *(const struct solo_ckpt_name *const *)a;
    const struct solo_ckpt_name *right = *(const struct solo_ckpt_name *const *)b;
    uint32_t least = left->bytes < right->bytes ? left->bytes : right->bytes;
    int difference = memcmp(left->text, right->text, least);
    return difference ? difference : (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

static int check_names(struct parse *parse)
{
    size_t count = parse->out->names.count;
    const struct solo_ckpt_name *names = parse->out->names.items;
    const struct solo_ckpt_name **sorted = malloc((count + 1) * sizeof(*sorted));
    if (!sorted) {
        return err_set(SOLO_ENOMEM, "no memory for %zu names", count);
    }
    for (size_t i = 0; i < count; i++) {
        sorted[i] = &names[i];
    }
    qsort(sorted, count, sizeof(*sorted), compare_names);
    for (size_t i = 1; i < count; i++) {
        if (compare_names(&sorted[i - 1], &sorted[i]) == 0) {
            FAULT(parse->faults, SOLO_CKPT_DUPLICATE, 8, "tensor %s is there twice",
                  faults_name(sorted[i]->text, sorted[i]->bytes));
        }
    }
    free(sorted);
    return 0;
}

/* Row-major strides behind the sizes; packed types count pairs. */
static void fill_shape(const uint64_t *sizes, uint32_t dims, uint32_t packed, uint64_t *out)
{
    uint64_t stride = 1;
    for (uint32_t i = dims; i-- > 0;) {
        out[i] = i + 1 == dims ? sizes[i] / packed : sizes[i];
        out[dims + i] = stride;
        stride = multiply_capped(stride, out[i] ? out[i] : 1);
    }
}

static int fill_tables(struct parse *parse)
{
    struct safetensors *out = parse->out;
    size_t count = parse->entries.count;
    struct grown shapes = {0};
    TRY(grow(&out->storages, count, sizeof(struct solo_ckpt_storage)));
    TRY(grow(&out->tensors, count, sizeof(struct solo_ckpt_tensor)));
    TRY(grow(&out->names, count, sizeof(struct solo_ckpt_name)));
    TRY(grow(&shapes, out->shapes.count * 2 + 1, sizeof(uint64_t)));
    for (size_t i = 0; i < count; i++) {
        const struct entry *entry = (struct entry *)parse->entries.items + i;
        const char *text = (char *)out->texts.items + entry->text_at;
        uint64_t *shape = (uint64_t *)shapes.items + shapes.count;
        fill_shape((uint64_t *)out->shapes.items + entry->shape_at, entry->dims,
                   dtype_packed(entry->dtype), shape);
        shapes.count += 2 * entry->dims;
        uint64_t bytes = entry->end - entry->begin;
        ((struct solo_ckpt_storage *)out->storages.items)[i] =
            (struct solo_ckpt_storage){.offset = parse->data_at + entry->begin,
                                       .bytes = bytes,
                                       .packed_bytes = bytes,
                                       .header_offset = SOLO_CKPT_NONE,
                                       .dtype = entry->dtype,
                                       .key = text,
                                       .key_bytes = entry->name_bytes,
                                       .location = "cpu",
                                       .location_bytes = 3};
        ((struct solo_ckpt_tensor *)out->tensors.items)[i] =
            (struct solo_ckpt_tensor){.storage = (uint32_t)i,
                                      .dtype = entry->dtype,
                                      .dims = entry->dims,
                                      .metadata = SOLO_CKPT_NONE,
                                      .sizes = shape,
                                      .strides = shape + entry->dims};
        ((struct solo_ckpt_name *)out->names.items)[i] = (struct solo_ckpt_name){
            .text = text, .bytes = entry->name_bytes, .tensor = (uint32_t)i};
    }
    out->storages.count = out->tensors.count = out->names.count = count;
    grown_free(&out->shapes);
    out->shapes = shapes;
    return check_names(parse);
}

static int parse_header(struct parse *parse)
{
    bool first = true;
    struct scan_text key;
    if (!scan_enter(&parse->json, '{')) {
        return broken(parse);
    }
    while (scan_key(&parse->json, &first, &key)) {
        TRY(scan_is(key, "__metadata__") ? take_note(parse) : take_entry(parse, key));
    }
    if (parse->json.what || !scan_end(&parse->json)) {
        return broken(parse);
    }
    return 0;
}

int safetensors_parse(const uint8_t *header, size_t size, uint64_t file_bytes,
                      const struct solo_ckpt_options *options, struct safetensors *out,
                      struct faults *faults)
{
    *out = (struct safetensors){0};
    struct parse parse = {.out = out,
                          .faults = faults,
                          .json = scan_of(header, size),
                          .tensors_max = options->tensors_max,
                          .data_at = 8 + (uint64_t)size,
                          .data_bytes = file_bytes - 8 - size};
    TRY(grow(&out->shapes, 1, sizeof(uint64_t))); /* so that there is an address to count from */
    TRY(grow(&out->texts, 1, 1));
    int rc = scan_is_utf8(header, size)
                 ? parse_header(&parse)
                 : FAULT(faults, SOLO_CKPT_DAMAGED, 8, "the safetensors header is not UTF-8");
    if (rc == 0) {
        if (parse.entries.count) {
            qsort(parse.entries.items, parse.entries.count, sizeof(struct entry), by_offset);
        }
        check_cover(&parse, options->allow_trailing);
        rc = fill_tables(&parse);
    }
    grown_free(&parse.entries);
    return rc == SOLO_ECORRUPT ? 0 : rc;
}

void safetensors_free(struct safetensors *safetensors)
{
    struct grown *all[] = {&safetensors->storages, &safetensors->tensors, &safetensors->shapes,
                           &safetensors->names, &safetensors->texts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        grown_free(all[i]);
    }
}
