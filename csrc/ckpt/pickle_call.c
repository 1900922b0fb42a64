/* pickle_call.c - what a pickle may name, and the three things whose meaning is known here:
 * storages, tensors, and element types. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/dtypes.h"
#include "ckpt/pickle.h"

/* What torch.save writes of itself: the list of torch's restricted unpickler. Names of
 * storages and element types come from dtypes.c. */
static const struct {
    const char *name;
    enum global_id id;
} allowed[] = {
    {"collections.OrderedDict", GLOBAL_DICT},
    {"collections.Counter", GLOBAL_DICT},
    {"torch._utils._rebuild_tensor_v2", GLOBAL_TENSOR_V2},
    {"torch._utils._rebuild_tensor_v3", GLOBAL_TENSOR_V3},
    {"torch._utils._rebuild_tensor", GLOBAL_TENSOR},
    {"torch._utils._rebuild_parameter", GLOBAL_PARAMETER},
    {"torch._utils._rebuild_parameter_with_state", GLOBAL_PARAMETER},
    {"torch._utils._rebuild_qtensor", GLOBAL_PLAIN},
    {"torch._utils._rebuild_sparse_tensor", GLOBAL_PLAIN},
    {"torch._utils._rebuild_meta_tensor_no_storage", GLOBAL_PLAIN},
    {"torch._utils._rebuild_nested_tensor", GLOBAL_PLAIN},
    {"torch._utils._rebuild_wrapper_subclass", GLOBAL_PLAIN},
    {"torch._utils._rebuild_device_tensor_from_numpy", GLOBAL_PLAIN},
    {"torch._utils._rebuild_device_tensor_from_cpu_tensor", GLOBAL_PLAIN},
    {"torch._tensor._rebuild_from_type_v2", GLOBAL_SUBCLASS},
    {"torch.nn.parameter.Parameter", GLOBAL_PLAIN},
    {"torch.serialization._get_layout", GLOBAL_PLAIN},
    {"torch.Size", GLOBAL_PLAIN},
    {"torch.Tensor", GLOBAL_PLAIN},
    {"torch.device", GLOBAL_PLAIN},
    {"torch.per_tensor_affine", GLOBAL_PLAIN},
    {"torch.per_tensor_symmetric", GLOBAL_PLAIN},
    {"torch.per_channel_affine", GLOBAL_PLAIN},
    {"torch.per_channel_symmetric", GLOBAL_PLAIN},
    {"torch.per_channel_affine_float_qparams", GLOBAL_PLAIN},
    {"_codecs.encode", GLOBAL_PLAIN},
    {"builtins.bytearray", GLOBAL_PLAIN},
    {"builtins.bytes", GLOBAL_PLAIN}, /* empty ones, by protocol 2 */
    {"builtins.set", GLOBAL_PLAIN},
    {"builtins.complex", GLOBAL_PLAIN},
};

static bool starts(const char *text, size_t size, const char *with)
{
    size_t length = strlen(with);
    return size > length && memcmp(text, with, length) == 0;
}

static void classify(const struct pickle *pickle, struct pickle_global *global, const char *text)
{
    size_t size = global->bytes;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        if (strlen(allowed[i].name) == size && memcmp(allowed[i].name, text, size) == 0) {
            global->id = allowed[i].id;
            return;
        }
    }
    if (starts(text, size, "torch.")) {
        size_t skip = starts(text, size, "torch.cuda.")      ? 11
                      : starts(text, size, "torch.storage.") ? 14
                                                             : 6;
        global->dtype = dtype_of_storage(text + skip, size - skip);
        bool untyped = size - skip == 14 && memcmp(text + skip, "UntypedStorage", 14) == 0;
        if (global->dtype != DTYPE_UNKNOWN || untyped) {
            global->dtype = untyped ? dtype_byte() : global->dtype;
            global->id = GLOBAL_STORAGE;
            return;
        }
        global->dtype = dtype_of_torch(text + 6, size - 6);
        if (global->dtype != DTYPE_UNKNOWN) {
            global->id = GLOBAL_DTYPE;
            return;
        }
    }
    for (size_t i = 0; i < pickle->options->allowed_count; i++) {
        const char *name = pickle->options->allowed[i];
        if (strlen(name) == size && memcmp(name, text, size) == 0) {
            global->id = GLOBAL_PLAIN;
            return;
        }
    }
}

/* The index of a global of this text, or the count. A pickler writes each name once; only a
 * hostile file makes this list long. */
#define KNOWN_MAX 128u

static size_t known(const struct pickle *pickle, const char *text, size_t size)
{
    const struct pickle_global *globals = pickle->globals.items;
    size_t i = 0;
    for (; i < pickle->globals.count && i < KNOWN_MAX; i++) {
        if (globals[i].bytes == size &&
            memcmp((char *)pickle->texts.items + globals[i].text, text, size) == 0) {
            return i;
        }
    }
    return pickle->globals.count;
}

static const char *python3_module(const uint8_t *module, size_t *size)
{
    if (*size == 11 && memcmp(module, "__builtin__", 11) == 0) {
        *size = 8;
        return "builtins";
    }
    return (const char *)module;
}

int pickle_global_add(struct pickle *pickle, const uint8_t *module, size_t module_bytes,
                      const uint8_t *name, size_t name_bytes, uint64_t *out)
{
    if (module_bytes + name_bytes + 1 > PICKLE_NAME_MAX || !module_bytes || !name_bytes) {
        return FAULT(pickle->faults, SOLO_CKPT_DAMAGED, pickle->base + pickle->at,
                     "the pickle names a global of %zu characters", module_bytes + name_bytes);
    }
    char text[PICKLE_NAME_MAX];
    const char *new_module = python3_module(module, &module_bytes);
    memcpy(text, new_module, module_bytes);
    text[module_bytes] = '.';
    memcpy(text + module_bytes + 1, name, name_bytes);
    size_t size = module_bytes + 1 + name_bytes, index = known(pickle, text, size);
    if (index >= PICKLE_GLOBALS_MAX) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                     "the pickle names more than %u globals", PICKLE_GLOBALS_MAX);
    }
    if (index == pickle->globals.count) {
        struct pickle_global global = {.bytes = (uint32_t)size, .dtype = DTYPE_UNKNOWN};
        classify(pickle, &global, text);
        TRY(pickle_texts(pickle, text, size, &global.text));
        TRY(grow(&pickle->globals, 1, sizeof global));
        ((struct pickle_global *)pickle->globals.items)[pickle->globals.count++] = global;
        if (global.id == GLOBAL_UNKNOWN && !pickle->options->placeholders) {
            FAULT(pickle->faults, SOLO_CKPT_UNSAFE, pickle->base + pickle->at, "%s",
                  faults_name(text, size)); /* go on: the message shall name all of them */
        }
    }
    *out = value_of(SOLO_CKPT_GLOBAL, index);
    return 0;
}

static int wrong(struct pickle *pickle, const char *what)
{
    return FAULT(pickle->faults, SOLO_CKPT_DAMAGED, pickle->base + pickle->at,
                 "before byte %zu of the pickle: %s", pickle->at, what);
}

/* ---- storages ------------------------------------------------------------------------------ */

static bool is_text(uint64_t value)
{
    return value_type(value) == SOLO_CKPT_STR || value_type(value) == SOLO_CKPT_OLD_STR;
}

static bool is_count(uint64_t value)
{
    return value_type(value) == SOLO_CKPT_INT && value_int(value) >= 0;
}

static bool is_key_of(const void *table, uint32_t row, const char *key, size_t size)
{
    const struct solo_ckpt_storage *storage = (const struct solo_ckpt_storage *)table + row;
    return storage->key_bytes == size && memcmp(storage->key, key, size) == 0;
}

uint32_t pickle_storage_find(struct pickle *pickle, const char *key, size_t size)
{
    uint32_t row = slots_find(&pickle->keys, is_key_of, pickle->storages.items, key, size);
    return row == SLOTS_CROWDED ? SLOTS_NONE : row;
}

static int add_row(struct pickle *pickle, const struct solo_ckpt_storage *storage, uint32_t *row)
{
    if (pickle->storages.count >= pickle->options->tensors_max) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                     "more than %u storages", pickle->options->tensors_max);
    }
    *row = (uint32_t)pickle->storages.count;
    TRY(slots_add(&pickle->keys, *row, storage->key, storage->key_bytes));
    TRY(grow(&pickle->storages, 1, sizeof *storage));
    ((struct solo_ckpt_storage *)pickle->storages.items)[pickle->storages.count++] = *storage;
    return 0;
}

static int add_storage(struct pickle *pickle, const struct solo_ckpt_storage *storage,
                       uint64_t *out)
{
    const struct solo_ckpt_storage *rows = pickle->storages.items;
    uint32_t row = slots_find(&pickle->keys, is_key_of, rows, storage->key, storage->key_bytes);
    if (row == SLOTS_CROWDED) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                     "the storages' keys are made to be slow to look up");
    }
    if (row == SLOTS_NONE) {
        TRY(add_row(pickle, storage, &row));
    } else if (rows[row].bytes != storage->bytes) {
        return FAULT(pickle->faults, SOLO_CKPT_MISMATCH, pickle->base + pickle->at,
                     "storage %s has two sizes, %" PRIu64 " and %" PRIu64 " bytes",
                     faults_name(storage->key, storage->key_bytes), rows[row].bytes,
                     storage->bytes);
    }
    *out = value_of(SOLO_CKPT_STORAGE, row);
    return 0;
}

/* (key, first, count): a part of the storage, which stays one with its other parts. */
static int add_view(struct pickle *pickle, uint64_t description, uint64_t elements, uint64_t *value)
{
    const uint64_t *items = NULL;
    if (pickle_tuple(pickle, description, &items) != 3 || !is_count(items[1]) ||
        !is_count(items[2]) ||
        add_capped((uint64_t)value_int(items[1]), (uint64_t)value_int(items[2])) > elements) {
        return wrong(pickle, "a storage's view does not lie inside it");
    }
    TRY(grow(&pickle->views, 1, sizeof(struct pickle_view)));
    struct pickle_view *view = (struct pickle_view *)pickle->views.items + pickle->views.count++;
    *view = (struct pickle_view){(uint64_t)value_int(items[1]), (uint64_t)value_int(items[2])};
    *value |= (uint64_t)pickle->views.count << (VALUE_BITS + VIEW_SHIFT);
    return 0;
}

/* ("storage", type, key, location, element count[, view]) */
int pickle_persistent(struct pickle *pickle, uint64_t id, uint64_t *out)
{
    const uint64_t *items = NULL;
    size_t count = pickle_tuple(pickle, id, &items), size = 0;
    if (count && is_text(items[0])) {
        const uint8_t *tag = pickle_text(pickle, items[0], &size);
        if (size == 6 && memcmp(tag, "module", 6) == 0 && count > 1) {
            *out = items[1]; /* a class with its source; the class is judged like any global */
            return 0;
        }
        size = size == 7 && memcmp(tag, "storage", 7) == 0;
    }
    if (!size || count < 5 || value_type(items[1]) != SOLO_CKPT_GLOBAL || !is_text(items[2]) ||
        !is_text(items[3]) || !is_count(items[4])) {
        return wrong(pickle, "a persistent id is not that of a storage");
    }
    uint64_t view = count > 5 ? items[5] : value_of(SOLO_CKPT_NIL, 0);
    const struct pickle_global *type = pickle_global(pickle, items[1]);
    if (type->id != GLOBAL_STORAGE) {
        return wrong(pickle, "a storage has a type that is none");
    }
    size_t key_bytes, location_bytes;
    struct solo_ckpt_storage storage = {
        .offset = SOLO_CKPT_NONE, .header_offset = SOLO_CKPT_NONE, .dtype = type->dtype};
    storage.key = (const char *)pickle_text(pickle, items[2], &key_bytes);
    storage.location = (const char *)pickle_text(pickle, items[3], &location_bytes);
    storage.key_bytes = (uint32_t)key_bytes;
    storage.location_bytes = (uint32_t)location_bytes;
    uint64_t elements = (uint64_t)value_int(items[4]);
    storage.bytes = storage.packed_bytes = multiply_capped(elements, dtype_bits(type->dtype)) / 8;
    if (storage.bytes > pickle_inflated_max(pickle->file_bytes)) {
        return FAULT(pickle->faults, SOLO_CKPT_MISMATCH, pickle->base + pickle->at,
                     "storage %s of %" PRIu64 " elements is far larger than the file",
                     faults_name(storage.key, storage.key_bytes), elements);
    }
    TRY(add_storage(pickle, &storage, out));
    return value_type(view) == SOLO_CKPT_NIL ? 0 : add_view(pickle, view, elements, out);
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* Sizes and strides of all tensors, one for each byte of pickle: a tensor takes about a hundred
 * bytes and has few dimensions; with its arguments in the memo it would take five, and have 64. */
#define SHAPES_FREE 4096u

/* Sizes and strides into shapes, and what they reach: the highest element and the count. */
static int take_shape(struct pickle *pickle, uint64_t sizes, uint64_t strides,
                      struct solo_ckpt_tensor *tensor, uint64_t *last, uint64_t *elements)
{
    const uint64_t *size = NULL, *stride = NULL;
    size_t dims = pickle_tuple(pickle, sizes, &size);
    if (value_type(sizes) != SOLO_CKPT_TUPLE || value_type(strides) != SOLO_CKPT_TUPLE ||
        pickle_tuple(pickle, strides, &stride) != dims || dims > PICKLE_DIMS_MAX) {
        return wrong(pickle, "a tensor's sizes and strides do not fit each other");
    }
    if (pickle->shapes.count + 2 * dims > SHAPES_FREE + pickle->size) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                     "one shape of %zu dimensions is used for far too many tensors", dims);
    }
    TRY(grow(&pickle->shapes, 2 * dims + 1, sizeof(uint64_t)));
    uint64_t *shape = (uint64_t *)pickle->shapes.items + pickle->shapes.count;
    *last = 0;
    *elements = 1;
    for (size_t i = 0; i < dims; i++) {
        if (!is_count(size[i]) || !is_count(stride[i])) {
            return wrong(pickle, "a size or stride is not a count");
        }
        shape[i] = (uint64_t)value_int(size[i]);
        shape[dims + i] = (uint64_t)value_int(stride[i]);
        *elements = multiply_capped(*elements, shape[i]);
        if (shape[i]) {
            *last = add_capped(*last, multiply_capped(shape[i] - 1, shape[dims + i]));
        }
    }
    tensor->dims = (uint32_t)dims;
    tensor->sizes = (void *)(uintptr_t)pickle->shapes.count; /* an index until pickle_finish */
    pickle->shapes.count += 2 * dims;
    return 0;
}

static int check_reach(struct pickle *pickle, const struct solo_ckpt_tensor *tensor, uint64_t last,
                       uint64_t elements)
{
    const struct solo_ckpt_storage *storage =
        (struct solo_ckpt_storage *)pickle->storages.items + tensor->storage;
    uint64_t width = dtype_bits(tensor->dtype) / 8;
    uint64_t end =
        elements ? multiply_capped(add_capped(add_capped(tensor->first, last), 1), width) : 0;
    if (end > storage->bytes || (int64_t)end < 0) {
        return FAULT(pickle->faults, SOLO_CKPT_MISMATCH, pickle->base + pickle->at,
                     "a tensor reaches to byte %" PRIu64 " of storage %s, which has %" PRIu64, end,
                     faults_name(storage->key, storage->key_bytes), storage->bytes);
    }
    uint64_t bytes = multiply_capped(elements, width);
    uint64_t room = PICKLE_EXPANDED_MAX;
    if (pickle->file_bytes > room / 4) {
        room = multiply_capped(pickle->file_bytes, 4);
    }
    if (bytes > storage->bytes && bytes > room && !pickle->options->allow_expanded) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                     "a tensor of %" PRIu64 " bytes is spread over the %" PRIu64
                     " bytes of storage %s by strides of 0",
                     bytes, storage->bytes, faults_name(storage->key, storage->key_bytes));
    }
    return 0;
}

/* A tensor of a view begins where the view does, and stays inside it. */
static int take_view(struct pickle *pickle, uint64_t storage, uint64_t last, uint64_t elements,
                     struct solo_ckpt_tensor *tensor)
{
    uint64_t index = value_index(storage) >> VIEW_SHIFT;
    if (!index) {
        return 0;
    }
    const struct pickle_view *view = (struct pickle_view *)pickle->views.items + index - 1;
    if (elements && add_capped(add_capped(tensor->first, last), 1) > view->count) {
        return wrong(pickle, "a tensor reaches beyond its storage's view");
    }
    tensor->first = add_capped(tensor->first, view->first);
    return 0;
}

/* (storage, first, sizes, strides[, requires_grad, hooks[, dtype][, metadata]]) */
static int add_tensor(struct pickle *pickle, enum global_id id, uint64_t arguments, uint64_t *out)
{
    const uint64_t *items = NULL;
    size_t count = pickle_tuple(pickle, arguments, &items);
    size_t extra = id == GLOBAL_TENSOR ? 4 : id == GLOBAL_TENSOR_V2 ? 6 : 7;
    if (count < extra || count > extra + 1 || value_type(items[0]) != SOLO_CKPT_STORAGE ||
        !is_count(items[1])) {
        return wrong(pickle, "a tensor's description is not one");
    }
    struct solo_ckpt_tensor tensor = {.storage = (uint32_t)value_index(items[0]),
                                      .first = (uint64_t)value_int(items[1]),
                                      .metadata = SOLO_CKPT_NONE};
    tensor.dtype = ((struct solo_ckpt_storage *)pickle->storages.items)[tensor.storage].dtype;
    if (id != GLOBAL_TENSOR) {
        tensor.requires_grad = value_type(items[4]) == SOLO_CKPT_TRUE;
    }
    if (id == GLOBAL_TENSOR_V3) {
        if (value_type(items[6]) != SOLO_CKPT_GLOBAL ||
            pickle_global(pickle, items[6])->id != GLOBAL_DTYPE) {
            return wrong(pickle, "a tensor's dtype is not one");
        }
        tensor.dtype = pickle_global(pickle, items[6])->dtype;
        if (dtype_bits(tensor.dtype) % 8) { /* of safetensors alone: torch has none */
            return wrong(pickle, "a tensor's elements are not whole bytes");
        }
    }
    if (count > extra && value_type(items[extra]) == SOLO_CKPT_DICT) {
        tensor.metadata = items[extra];
    }
    uint64_t last = 0, elements = 0;
    TRY(take_shape(pickle, items[2], items[3], &tensor, &last, &elements));
    TRY(take_view(pickle, items[0], last, elements, &tensor));
    TRY(check_reach(pickle, &tensor, last, elements));
    if (pickle->tensors.count >= pickle->options->tensors_max) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                     "more than %u tensors", pickle->options->tensors_max);
    }
    TRY(grow(&pickle->tensors, 1, sizeof tensor));
    ((struct solo_ckpt_tensor *)pickle->tensors.items)[pickle->tensors.count] = tensor;
    *out = value_of(SOLO_CKPT_TENSOR, pickle->tensors.count++);
    return 0;
}

static bool is_tensor_id(enum global_id id)
{
    return id == GLOBAL_TENSOR || id == GLOBAL_TENSOR_V2 || id == GLOBAL_TENSOR_V3;
}

/* A subclass (rebuild, type, arguments, state): the tensor inside takes the arguments' place. */
static int unwrap_subclass(struct pickle *pickle, uint64_t *arguments)
{
    const uint64_t *items = NULL;
    if (pickle_tuple(pickle, *arguments, &items) != 4 || value_type(items[0]) != SOLO_CKPT_GLOBAL) {
        return wrong(pickle, "a tensor subclass's description is not one");
    }
    enum global_id id = pickle_global(pickle, items[0])->id;
    if (!is_tensor_id(id)) {
        return 0;
    }
    uint64_t kept[4] = {items[0], items[1], items[2], items[3]}, index;
    TRY(add_tensor(pickle, id, kept[2], &kept[2]));
    TRY(pickle_words(pickle, 5, &index));
    uint64_t *words = pickle_word(pickle, index);
    words[0] = 4;
    memcpy(words + 1, kept, sizeof kept);
    *arguments = value_of(SOLO_CKPT_TUPLE, index);
    return 0;
}

static void freeze(struct pickle *pickle, uint64_t arguments)
{
    const uint64_t *items = NULL;
    size_t count = pickle_tuple(pickle, arguments, &items);
    for (size_t i = 0; i < count; i++) {
        unsigned type = value_type(items[i]);
        if (type == SOLO_CKPT_LIST || type == SOLO_CKPT_DICT || type == SOLO_CKPT_CALL) {
            pickle_word(pickle, value_index(items[i]))[NODE_FLAGS] |= FLAG_FROZEN;
        }
    }
}

int pickle_call(struct pickle *pickle, uint64_t function, uint64_t arguments, bool created,
                uint64_t *out)
{
    if (value_type(function) != SOLO_CKPT_GLOBAL || value_type(arguments) != SOLO_CKPT_TUPLE) {
        return wrong(pickle, "it calls something that is not a global");
    }
    enum global_id id = pickle_global(pickle, function)->id;
    if (is_tensor_id(id)) {
        return add_tensor(pickle, id, arguments, out);
    }
    if (id == GLOBAL_STORAGE || id == GLOBAL_DTYPE) {
        return wrong(pickle, "it calls a storage or dtype, which no checkpoint does");
    }
    if (id == GLOBAL_SUBCLASS) {
        TRY(unwrap_subclass(pickle, &arguments));
    }
    freeze(pickle, arguments);
    uint64_t index;
    TRY(pickle_words(pickle, CALL_WORDS, &index));
    uint64_t *node = pickle_word(pickle, index);
    node[NODE_FLAGS] = created ? FLAG_CREATED : 0;
    node[CALL_FUNCTION] = function;
    node[CALL_ARGUMENTS] = arguments;
    node[CALL_STATE] = SOLO_CKPT_NONE;
    *out = value_of(SOLO_CKPT_CALL, index);
    return 0;
}
