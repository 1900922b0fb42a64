#include "ckpt/index.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"

#define METADATA_MAX (256u << 20)
#define TENSORS_MAX  2000000u
#define DEPTH_MAX    64u

int index_bytes(struct solo_ckpt *ckpt, uint64_t offset, void *bytes, size_t size)
{
    return ckpt->source.read(ckpt->source.context, ckpt->source.base + offset, bytes, size);
}

int index_read(struct solo_ckpt *ckpt, uint64_t offset, uint64_t bytes, const char *what,
               uint8_t **out)
{
    if (bytes > ckpt->options.metadata_max) {
        return FAULT(&ckpt->faults, SOLO_CKPT_LIMIT, offset,
                     "%s has %" PRIu64 " bytes, more than the limit of %" PRIu64, what, bytes,
                     ckpt->options.metadata_max);
    }
    uint8_t *room = malloc((size_t)bytes + 1);
    if (!room) {
        return err_set(SOLO_ENOMEM, "no memory for %" PRIu64 " bytes of %s", bytes, what);
    }
    int rc = index_bytes(ckpt, offset, room, (size_t)bytes);
    if (rc < 0) {
        free(room);
        return rc;
    }
    *out = room;
    return 0;
}

int index_safetensors(struct solo_ckpt *ckpt)
{
    struct reader reader = reader_of(ckpt->head, ckpt->head_bytes);
    uint64_t header_bytes = read_u64(&reader);
    if (header_bytes > ckpt->info.file_bytes - 8) {
        return FAULT(&ckpt->faults, SOLO_CKPT_TRUNCATED, ckpt->info.file_bytes,
                     "the file has %" PRIu64 " bytes, its header alone %" PRIu64,
                     ckpt->info.file_bytes, header_bytes);
    }
    TRY(index_read(ckpt, 8, header_bytes, "the safetensors header", &ckpt->metadata));
    ckpt->metadata_bytes = (size_t)header_bytes;
    return safetensors_parse(ckpt->metadata, (size_t)header_bytes, ckpt->info.file_bytes,
                             &ckpt->options, &ckpt->safetensors, &ckpt->faults);
}

int index_pickle(struct solo_ckpt *ckpt)
{
    TRY(index_read(ckpt, 0, ckpt->info.file_bytes, "the pickle", &ckpt->metadata));
    ckpt->metadata_bytes = (size_t)ckpt->info.file_bytes;
    pickle_init(&ckpt->pickle, ckpt->metadata, ckpt->metadata_bytes, 0, &ckpt->options,
                &ckpt->faults);
    ckpt->has_pickle = true;
    TRY(pickle_run(&ckpt->pickle));
    ckpt->info.protocol = ckpt->pickle.protocol;
    if (ckpt->pickle.at != ckpt->pickle.size && !ckpt->options.allow_trailing) {
        FAULT(&ckpt->faults, SOLO_CKPT_DAMAGED, ckpt->pickle.at,
              "bytes follow the end of the pickle");
    }
    if (ckpt->pickle.storages.count) {
        FAULT(&ckpt->faults, SOLO_CKPT_MISSING, 0,
              "the pickle refers to storages it does not hold");
    }
    return pickle_finish(&ckpt->pickle);
}

static int index_any(struct solo_ckpt *ckpt)
{
    static int (*const readers[SOLO_CKPT_KIND_COUNT])(struct solo_ckpt *) = {
        [SOLO_CKPT_TORCH_ZIP] = index_zip,
        [SOLO_CKPT_SAFETENSORS] = index_safetensors,
        [SOLO_CKPT_LEGACY] = index_legacy,
        [SOLO_CKPT_PICKLE] = index_pickle,
    };
    if (readers[ckpt->info.kind]) {
        return readers[ckpt->info.kind](ckpt);
    }
    return FAULT(&ckpt->faults, SOLO_CKPT_UNSUPPORTED, 0, "this is not a checkpoint: %s",
                 solo_ckpt_kind_name(ckpt->info.kind));
}

static void options_fill(struct solo_ckpt_options *options, const struct solo_ckpt_options *given)
{
    *options = (struct solo_ckpt_options){.size = sizeof *options};
    if (given) {
        memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
    }
    options->metadata_max = options->metadata_max ? options->metadata_max : METADATA_MAX;
    options->tensors_max = options->tensors_max ? options->tensors_max : TENSORS_MAX;
    options->depth_max = options->depth_max ? options->depth_max : DEPTH_MAX;
}

int solo_ckpt_open(const struct solo_ckpt_source *source, const struct solo_ckpt_options *options,
                   struct solo_ckpt **out)
{
    struct solo_ckpt *ckpt = calloc(1, sizeof *ckpt);
    if (!ckpt) {
        return err_set(SOLO_ENOMEM, "no memory for a checkpoint's index");
    }
    options_fill(&ckpt->options, options);
    ckpt->source = *source;
    ckpt->info.file_bytes = source->size;
    ckpt->head_bytes = source->size < INDEX_HEAD_BYTES ? (size_t)source->size : INDEX_HEAD_BYTES;
    ckpt->head = malloc(INDEX_HEAD_BYTES);
    int rc = ckpt->head ? index_bytes(ckpt, 0, ckpt->head, ckpt->head_bytes)
                        : err_set(SOLO_ENOMEM, "no memory for the head of a file");
    if (rc == 0) {
        ckpt->info.kind = ckpt->options.pickle_only
                              ? SOLO_CKPT_PICKLE
                              : solo_ckpt_sniff(ckpt->head, ckpt->head_bytes, source->size);
        rc = index_any(ckpt);
    }
    free(ckpt->head);
    ckpt->head = NULL;
    ckpt->options.allowed = NULL; /* borrowed during this call alone */
    ckpt->options.allowed_count = 0;
    ckpt->info.metadata_bytes = ckpt->directory_bytes + ckpt->metadata_bytes;
    if (rc < 0 && !(rc == SOLO_ECORRUPT && ckpt->faults.count)) {
        solo_ckpt_close(ckpt);
        return rc;
    }
    *out = ckpt;
    return 0;
}

void solo_ckpt_close(struct solo_ckpt *ckpt)
{
    if (!ckpt) {
        return;
    }
    zip_free(&ckpt->zip);
    pickle_free(&ckpt->pickle);
    safetensors_free(&ckpt->safetensors);
    faults_free(&ckpt->faults);
    free(ckpt->directory);
    free(ckpt->metadata);
    free(ckpt);
}

/* ---- what others see ------------------------------------------------------------------------ */

void solo_ckpt_info_get(const struct solo_ckpt *ckpt, struct solo_ckpt_info *out)
{
    *out = ckpt->info;
}

uint32_t solo_ckpt_fault_count(const struct solo_ckpt *ckpt)
{
    return ckpt->faults.count;
}

int solo_ckpt_fault_get(const struct solo_ckpt *ckpt, uint32_t index, struct solo_ckpt_fault *out)
{
    if (index >= ckpt->faults.count || index >= FAULTS_KEPT || !ckpt->faults.kept) {
        return SOLO_ENOENT;
    }
    *out = ckpt->faults.kept[index];
    return 0;
}

#define TABLE(ckpt, name) ((ckpt)->has_pickle ? &(ckpt)->pickle.name : &(ckpt)->safetensors.name)

size_t solo_ckpt_storages(const struct solo_ckpt *ckpt, const struct solo_ckpt_storage **out)
{
    *out = TABLE(ckpt, storages)->items;
    return TABLE(ckpt, storages)->count;
}

size_t solo_ckpt_tensors(const struct solo_ckpt *ckpt, const struct solo_ckpt_tensor **out)
{
    *out = TABLE(ckpt, tensors)->items;
    return TABLE(ckpt, tensors)->count;
}

size_t solo_ckpt_names(const struct solo_ckpt *ckpt, const struct solo_ckpt_name **out)
{
    *out = TABLE(ckpt, names)->items;
    return TABLE(ckpt, names)->count;
}

size_t solo_ckpt_records(const struct solo_ckpt *ckpt, const struct solo_ckpt_record **out)
{
    *out = ckpt->zip.records;
    return ckpt->zip.count;
}

size_t solo_ckpt_note(const struct solo_ckpt *ckpt, const char **out)
{
    *out = ckpt->safetensors.note ? ckpt->safetensors.note : "";
    return ckpt->safetensors.note_bytes;
}

size_t solo_ckpt_metadata(const struct solo_ckpt *ckpt, uint32_t part, const void **out)
{
    *out = part == 0 ? ckpt->directory : part == 1 ? ckpt->metadata : NULL;
    return part == 0 ? ckpt->directory_bytes : part == 1 ? ckpt->metadata_bytes : 0;
}

int solo_ckpt_local_check(const struct solo_ckpt *ckpt, const struct solo_ckpt_storage *storage,
                          const void *local, size_t size)
{
    size_t low = 0, high = ckpt->zip.count;
    while (low < high) { /* records are in the order of their headers */
        size_t middle = (low + high) / 2;
        if (ckpt->zip.records[middle].header_offset < storage->header_offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == ckpt->zip.count) {
        return err_set(SOLO_EINVAL, "this storage is not in a zip archive");
    }
    return zip_local_check(&ckpt->zip, low, local, size);
}

/* ---- values --------------------------------------------------------------------------------- */

uint64_t solo_ckpt_root(const struct solo_ckpt *ckpt)
{
    return ckpt->has_pickle ? ckpt->pickle.root : SOLO_CKPT_NONE;
}

static double number_of(const struct pickle *pickle, uint64_t value)
{
    const uint8_t *at = pickle->bytes + value_index(value) + 1;
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) { /* big endian in a pickle */
        bits = bits << 8 | at[i];
    }
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static void call_of(const struct pickle *pickle, uint64_t value, struct solo_ckpt_value *out)
{
    const uint64_t *node = pickle_word(pickle, value_index(value));
    out->function = node[CALL_FUNCTION];
    out->arguments = node[CALL_ARGUMENTS];
    out->state = node[CALL_STATE];
    out->created = (node[NODE_FLAGS] & FLAG_CREATED) != 0;
    out->keyed = (node[NODE_FLAGS] & FLAG_KEYED) != 0;
}

static void part_of(const struct pickle *pickle, uint64_t value, struct solo_ckpt_value *out)
{
    uint64_t view = value_index(value) >> VIEW_SHIFT;
    out->count = SOLO_CKPT_NONE;
    if (view) {
        const struct pickle_view *part = (struct pickle_view *)pickle->views.items + view - 1;
        out->first = part->first;
        out->count = part->count;
    }
}

void solo_ckpt_value_get(const struct solo_ckpt *ckpt, uint64_t value, struct solo_ckpt_value *out)
{
    const struct pickle *pickle = &ckpt->pickle;
    *out = (struct solo_ckpt_value){.type = (enum solo_ckpt_type)value_type(value)};
    switch (out->type) {
    case SOLO_CKPT_INT:
        out->integer = value_int(value);
        break;
    case SOLO_CKPT_TENSOR:
        out->integer = (int64_t)value_index(value);
        break;
    case SOLO_CKPT_STORAGE:
        out->integer = (uint32_t)value_index(value);
        part_of(pickle, value, out);
        break;
    case SOLO_CKPT_FLOAT:
        out->number = number_of(pickle, value);
        break;
    case SOLO_CKPT_LONG:
    case SOLO_CKPT_STR:
    case SOLO_CKPT_OLD_STR:
    case SOLO_CKPT_BYTES:
    case SOLO_CKPT_BYTEARRAY:
        out->bytes = (const char *)pickle_text(pickle, value, &out->size);
        break;
    case SOLO_CKPT_GLOBAL: {
        const struct pickle_global *global = pickle_global(pickle, value);
        out->bytes = (char *)pickle->texts.items + global->text;
        out->size = global->bytes;
        out->integer = global->id != GLOBAL_UNKNOWN;
        break;
    }
    case SOLO_CKPT_TUPLE: {
        const uint64_t *items;
        out->size = pickle_tuple(pickle, value, &items);
        break;
    }
    case SOLO_CKPT_CALL:
        call_of(pickle, value, out);
        break;
    case SOLO_CKPT_NIL:
    case SOLO_CKPT_FALSE:
    case SOLO_CKPT_TRUE:
    case SOLO_CKPT_LIST:
    case SOLO_CKPT_DICT:
    case SOLO_CKPT_SET:
    case SOLO_CKPT_FROZENSET:
        break;
    }
}

size_t solo_ckpt_items(const struct solo_ckpt *ckpt, uint64_t value, uint64_t *cursor,
                       const uint64_t **items_out)
{
    const struct pickle *pickle = &ckpt->pickle;
    if (value_type(value) == SOLO_CKPT_TUPLE) {
        size_t count = *cursor ? 0 : pickle_tuple(pickle, value, items_out);
        *cursor = 1;
        return count;
    }
    uint64_t run = *cursor ? *cursor : pickle_word(pickle, value_index(value))[NODE_FIRST];
    if (!run || run == SOLO_CKPT_NONE) {
        return 0;
    }
    const uint64_t *words = pickle_word(pickle, run);
    *cursor = words[0] ? words[0] : SOLO_CKPT_NONE;
    *items_out = words + 2;
    return (size_t)words[1];
}
