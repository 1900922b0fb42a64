/* pickle.h - judges a pickle, opcode by opcode, and keeps what it says as inert values.
 *
 * Nothing is imported, called or built. Only names of the list in pickle_call.c (or the
 * caller's) may be called by what reads the values later; storages and tensors are checked
 * and put in tables on the way. Protocols 2 to 5, and Python 2's.
 *
 * Limits: memory stays below PICKLE_BYTES_EACH per byte of pickle; values, stack and memo each
 * below PICKLE_WORDS_MAX. */
#ifndef SOLO_CKPT_PICKLE_H
#define SOLO_CKPT_PICKLE_H

#include <stdbool.h>

#include "ckpt/faults.h"
#include "ckpt/grow.h"
#include "ckpt/slots.h"

#define PICKLE_WORDS_MAX  (64u << 20) /* 512 MiB of values */
#define PICKLE_BYTES_EACH 64u
#define PICKLE_DIMS_MAX   64u
#define PICKLE_NAME_MAX   512u /* of a global */
#define PICKLE_GLOBALS_MAX                                                                         \
    65536u /* a pickler writes each once: some hundred in all. Here the 129th is kept anew each    \
              time it is named */
#define PICKLE_EXPANDED_MAX                                                                        \
    (1ull << 30) /* bytes that a tensor may pretend to have beyond its
                                            storage, or 4 times the file */

/* What compressed data of a file may become, together. */
static inline uint64_t pickle_inflated_max(uint64_t file_bytes)
{
    return add_capped(64u << 20, multiply_capped(file_bytes, 16));
}

/* A value is a type in the low bits and an inline number, an offset into the pickle, an index
 * of a table or of `words`. */
#define VALUE_BITS 5u
static inline uint64_t value_of(unsigned type, uint64_t payload)
{
    return payload << VALUE_BITS | type;
}
static inline unsigned value_type(uint64_t value)
{
    return value & ((1u << VALUE_BITS) - 1);
}
static inline uint64_t value_index(uint64_t value)
{
    return value >> VALUE_BITS;
}
static inline int64_t value_int(uint64_t value)
{
    return (int64_t)value >> VALUE_BITS;
}

/* A storage's value: its row, and above that 1 + the index of a view, or 0. */
#define VIEW_SHIFT 32u

/* In words: a tuple is [count, items...]. Others begin with [first run, last run, flags]; a
 * run is [next, count, items...]; a call goes on with [function, arguments, state]. */
#define NODE_FIRST     0
#define NODE_LAST      1
#define NODE_FLAGS     2
#define NODE_WORDS     3
#define CALL_FUNCTION  3
#define CALL_ARGUMENTS 4
#define CALL_STATE     5
#define CALL_WORDS     6
#define FLAG_FROZEN    1u /* was an argument: must not change any more */
#define FLAG_SEEN      2u
#define FLAG_CREATED   4u
#define FLAG_KEYED     8u
#define TUPLE_SEEN     (1ull << 63)

enum global_id {
    GLOBAL_UNKNOWN, /* refused, or a placeholder */
    GLOBAL_PLAIN,   /* on the list, of no meaning here */
    GLOBAL_DICT,    /* takes items: OrderedDict, Counter */
    GLOBAL_TENSOR,  /* _rebuild_tensor */
    GLOBAL_TENSOR_V2,
    GLOBAL_TENSOR_V3,
    GLOBAL_PARAMETER,
    GLOBAL_SUBCLASS, /* _rebuild_from_type_v2 */
    GLOBAL_DTYPE,
    GLOBAL_STORAGE, /* a storage type */
};

struct pickle_global {
    size_t text; /* "module.name" in texts */
    uint32_t bytes;
    enum global_id id;
    uint32_t dtype;
};

/* A storage that is a part of another, in elements (torch before 0.4). */
struct pickle_view {
    uint64_t first, count;
};

struct pickle {
    const uint8_t *bytes; /* borrowed while the values are used */
    size_t size, at;
    uint64_t base; /* of bytes in the file, for messages */
    const struct solo_ckpt_options *options;
    struct faults *faults;
    uint64_t file_bytes, words_max;
    struct grown words, stack, memo, marks; /* uint64_t */
    struct grown globals;                   /* struct pickle_global */
    struct grown storages;                  /* struct solo_ckpt_storage, without offsets */
    struct grown views;                     /* struct pickle_view */
    struct grown tensors;                   /* struct solo_ckpt_tensor, see pickle_finish */
    struct grown shapes;                    /* uint64_t */
    struct grown texts;                     /* char */
    struct grown names;                     /* struct solo_ckpt_name */
    struct slots keys;                      /* storages by key */
    uint64_t root;
    uint32_t protocol;
    bool ran_out; /* the bytes ended before STOP: with more of them it might be fine */
};

void pickle_init(struct pickle *pickle, const void *bytes, size_t size, uint64_t base,
                 const struct solo_ckpt_options *options, struct faults *faults);
void pickle_free(struct pickle *pickle);

/* Runs to STOP; pickle->at is behind it then. May be called again for the next pickle in the
 * same bytes; tables and memo... start anew only for the memo. Error: ECORRUPT with a fault
 * added, ENOMEM. */
int pickle_run(struct pickle *pickle);

/* After the last run: names every tensor in the root's object, fixes the tables' pointers. */
int pickle_finish(struct pickle *pickle);

/* The row of the storage with this key, or UINT32_MAX. */
uint32_t pickle_storage_find(struct pickle *pickle, const char *key, size_t size);

/* ---- for the parts of this parser --------------------------------------------------------- */

static inline uint64_t *pickle_word(const struct pickle *pickle, uint64_t index)
{
    return (uint64_t *)pickle->words.items + index;
}
static inline struct pickle_global *pickle_global(const struct pickle *pickle, uint64_t value)
{
    return (struct pickle_global *)pickle->globals.items + value_index(value);
}
/* The bytes of a str, bytes or long value. */
const uint8_t *pickle_text(const struct pickle *pickle, uint64_t value, size_t *size_out);
/* Items of a tuple. */
size_t pickle_tuple(const struct pickle *pickle, uint64_t value, const uint64_t **items_out);
int pickle_words(struct pickle *pickle, size_t count, uint64_t *index_out);
int pickle_texts(struct pickle *pickle, const void *bytes, size_t size, size_t *at_out);

int pickle_global_add(struct pickle *pickle, const uint8_t *module, size_t module_bytes,
                      const uint8_t *name, size_t name_bytes, uint64_t *out);
/* REDUCE or NEWOBJ. */
int pickle_call(struct pickle *pickle, uint64_t function, uint64_t arguments, bool created,
                uint64_t *out);
int pickle_persistent(struct pickle *pickle, uint64_t id, uint64_t *out);

#endif
