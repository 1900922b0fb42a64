/* pickle_names.c - where in the object each tensor is: the keys on the way, joined with '.'. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/pickle.h"

#define DEPTH_MAX 200u

struct walk {
    struct pickle *pickle;
    uint32_t depth_max;
    char *path;
    size_t path_bytes, path_room, key_at, texts_max;
    size_t copied,
        copied_max; /* of keys: one long key in the memo can be that of a million items */
};

static int push_key(struct walk *walk, const void *key, size_t size)
{
    walk->copied += size;
    if (walk->copied > walk->copied_max) {
        return FAULT(walk->pickle->faults, SOLO_CKPT_LIMIT, walk->pickle->base,
                     "the keys of the object are longer than %zu bytes together", walk->copied_max);
    }
    if (walk->path_room - walk->path_bytes <= size) {
        size_t room = (walk->path_room + size + 1) * 2;
        char *path = realloc(walk->path, room);
        if (!path) {
            return err_set(SOLO_ENOMEM, "no memory for a name of %zu bytes", room);
        }
        walk->path = path;
        walk->path_room = room;
    }
    if (walk->path_bytes) {
        walk->path[walk->path_bytes++] = '.';
    }
    walk->key_at = walk->path_bytes;
    memcpy(walk->path + walk->path_bytes, key, size);
    walk->path_bytes += size;
    return 0;
}

static int push_number(struct walk *walk, int64_t number)
{
    char text[24];
    size_t at = sizeof text;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        text[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (number < 0) {
        text[--at] = '-';
    }
    return push_key(walk, text + at, sizeof text - at);
}

static int push_value(struct walk *walk, uint64_t key)
{
    unsigned type = value_type(key);
    if (type == SOLO_CKPT_INT) {
        return push_number(walk, value_int(key));
    }
    if (type == SOLO_CKPT_STR || type == SOLO_CKPT_OLD_STR || type == SOLO_CKPT_BYTES) {
        size_t size;
        const uint8_t *text = pickle_text(walk->pickle, key, &size);
        return push_key(walk, text, size);
    }
    return push_key(walk, "?", 1);
}

static int add_name(struct walk *walk, uint64_t tensor)
{
    struct pickle *pickle = walk->pickle;
    if (pickle->texts.count + walk->path_bytes > walk->texts_max) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base,
                     "the names of the tensors are longer than %zu bytes together",
                     walk->texts_max);
    }
    size_t at;
    TRY(pickle_texts(pickle, walk->path ? walk->path : "", walk->path_bytes, &at));
    TRY(grow(&pickle->names, 1, sizeof(struct solo_ckpt_name)));
    struct solo_ckpt_name *name =
        (struct solo_ckpt_name *)pickle->names.items + pickle->names.count++;
    *name = (struct solo_ckpt_name){.text = (void *)(uintptr_t)at, /* an index until fixed */
                                    .bytes = (uint32_t)walk->path_bytes,
                                    .key_at = (uint32_t)walk->key_at,
                                    .tensor = (uint32_t)tensor};
    return 0;
}

static int visit(struct walk *walk, uint64_t value, uint32_t depth);

static int visit_under(struct walk *walk, uint64_t value, uint32_t depth, size_t path_bytes,
                       size_t key_at)
{
    int rc = visit(walk, value, depth + 1);
    walk->path_bytes = path_bytes;
    walk->key_at = key_at;
    return rc;
}

static int visit_items(struct walk *walk, const uint64_t *node, bool keyed, uint32_t depth)
{
    size_t path_bytes = walk->path_bytes, key_at = walk->key_at;
    int64_t number = 0;
    for (uint64_t run = node[NODE_FIRST]; run;) {
        const uint64_t *words = pickle_word(walk->pickle, run);
        for (uint64_t i = 0; i < words[1]; i += keyed ? 2 : 1) {
            uint64_t value = words[2 + i + (keyed ? 1 : 0)];
            if (value_type(value) < SOLO_CKPT_TUPLE) {
                number++;
                continue; /* a number or text: no tensor in it */
            }
            TRY(keyed ? push_value(walk, words[2 + i]) : push_number(walk, number));
            number++;
            TRY(visit_under(walk, value, depth, path_bytes, key_at));
        }
        run = words[0];
    }
    return 0;
}

static int visit_tuple(struct walk *walk, uint64_t value, uint32_t depth, bool numbered)
{
    size_t path_bytes = walk->path_bytes, key_at = walk->key_at;
    const uint64_t *items = NULL;
    uint64_t *header = pickle_word(walk->pickle, value_index(value));
    if (*header & TUPLE_SEEN) {
        return 0;
    }
    size_t count = pickle_tuple(walk->pickle, value, &items);
    *header |= TUPLE_SEEN;
    for (size_t i = 0; i < count; i++) {
        if (value_type(items[i]) >= SOLO_CKPT_TUPLE) {
            if (numbered) {
                TRY(push_number(walk, (int64_t)i));
            }
            TRY(visit_under(walk, items[i], depth, path_bytes, key_at));
        }
    }
    return 0;
}

/* The tensor inside parameters and subclasses, which are named like it: its value, else NONE. */
static uint64_t inner_tensor(const struct pickle *pickle, uint64_t value)
{
    for (int wrappers = 0; value_type(value) == SOLO_CKPT_CALL && wrappers < 8; wrappers++) {
        const uint64_t *node = pickle_word(pickle, value_index(value)), *items = NULL;
        enum global_id id = pickle_global(pickle, node[CALL_FUNCTION])->id;
        size_t count = pickle_tuple(pickle, node[CALL_ARGUMENTS], &items);
        size_t wanted = id == GLOBAL_PARAMETER ? 0 : 2;
        if ((id != GLOBAL_PARAMETER && id != GLOBAL_SUBCLASS) || count <= wanted) {
            return SOLO_CKPT_NONE;
        }
        value = items[wanted];
    }
    return value_type(value) == SOLO_CKPT_TENSOR ? value : SOLO_CKPT_NONE;
}

static int visit_call(struct walk *walk, uint64_t *node, uint32_t depth)
{
    enum global_id id = pickle_global(walk->pickle, node[CALL_FUNCTION])->id;
    uint64_t state = node[CALL_STATE];
    size_t path_bytes = walk->path_bytes, key_at = walk->key_at;
    TRY(visit_tuple(walk, node[CALL_ARGUMENTS], depth, id != GLOBAL_PLAIN));
    if (state != SOLO_CKPT_NONE) {
        TRY(visit_under(walk, state, depth, path_bytes, key_at));
    }
    return visit_items(walk, node, node[NODE_FLAGS] & FLAG_KEYED, depth);
}

static int visit(struct walk *walk, uint64_t value, uint32_t depth)
{
    unsigned type = value_type(value);
    if (type == SOLO_CKPT_TENSOR) {
        return add_name(walk, value_index(value));
    }
    if (type < SOLO_CKPT_TUPLE || type == SOLO_CKPT_STORAGE) {
        return 0;
    }
    if (depth > walk->depth_max) {
        return FAULT(walk->pickle->faults, SOLO_CKPT_LIMIT, walk->pickle->base,
                     "the object is nested deeper than %u", walk->depth_max);
    }
    if (type == SOLO_CKPT_TUPLE) {
        return visit_tuple(walk, value, depth, true);
    }
    uint64_t inner = inner_tensor(walk->pickle, value);
    if (inner != SOLO_CKPT_NONE) {
        return add_name(walk, value_index(inner));
    }
    uint64_t *node = pickle_word(walk->pickle, value_index(value));
    if (node[NODE_FLAGS] & FLAG_SEEN) {
        return 0;
    }
    node[NODE_FLAGS] |= FLAG_SEEN;
    if (type == SOLO_CKPT_CALL) {
        return visit_call(walk, node, depth);
    }
    return visit_items(walk, node, type == SOLO_CKPT_DICT, depth);
}

static void fix_pointers(struct pickle *pickle)
{
    struct solo_ckpt_tensor *tensors = pickle->tensors.items;
    for (size_t i = 0; i < pickle->tensors.count; i++) {
        uint64_t *shape = (uint64_t *)pickle->shapes.items + (uintptr_t)tensors[i].sizes;
        tensors[i].sizes = shape;
        tensors[i].strides = tensors[i].dims ? shape + tensors[i].dims : shape;
    }
    struct solo_ckpt_name *names = pickle->names.items;
    for (size_t i = 0; i < pickle->names.count; i++) {
        names[i].text = (char *)pickle->texts.items + (uintptr_t)names[i].text;
    }
}

int pickle_finish(struct pickle *pickle)
{
    struct walk walk = {.pickle = pickle,
                        .depth_max = pickle->options->depth_max,
                        .texts_max = pickle->texts.count + pickle->size * 4 + (16u << 20),
                        .copied_max = pickle->size * PICKLE_BYTES_EACH + (16u << 20)};
    int rc = 0;
    if (pickle->root != SOLO_CKPT_NONE) {
        if (walk.depth_max > DEPTH_MAX) {
            walk.depth_max = DEPTH_MAX;
        }
        rc = visit(&walk, pickle->root, 0);
    }
    free(walk.path);
    fix_pointers(pickle);
    return rc;
}
