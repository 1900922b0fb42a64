/* The opcodes are those of CPython's Lib/pickletools.py. What a file of torch.save never
 * holds (INST, OBJ, EXT*, text protocols, out-of-band buffers) is a fault. */
#include "ckpt/pickle.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"

void pickle_init(struct pickle *pickle, const void *bytes, size_t size, uint64_t base,
                 const struct solo_ckpt_options *options, struct faults *faults)
{
    *pickle = (struct pickle){.bytes = bytes,
                              .size = size,
                              .base = base,
                              .options = options,
                              .faults = faults,
                              .root = SOLO_CKPT_NONE,
                              .file_bytes = size};
    pickle->words_max = PICKLE_WORDS_MAX;
}

void pickle_free(struct pickle *pickle)
{
    struct grown *all[] = {&pickle->words,   &pickle->stack,    &pickle->memo,    &pickle->marks,
                           &pickle->globals, &pickle->storages, &pickle->tensors, &pickle->shapes,
                           &pickle->texts,   &pickle->names};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        grown_free(all[i]);
    }
    free(pickle->slots);
    pickle->slots = NULL;
}

static int damaged(struct pickle *pickle, const char *what)
{
    return FAULT(pickle->faults, SOLO_CKPT_DAMAGED, pickle->base + pickle->at,
                 "the pickle is damaged at byte %zu: %s", pickle->at, what);
}

static int ran_out(struct pickle *pickle)
{
    pickle->ran_out = true;
    return FAULT(pickle->faults, SOLO_CKPT_TRUNCATED, pickle->base + pickle->size,
                 "the pickle is cut at byte %zu", pickle->size);
}

/* ---- values ------------------------------------------------------------------------------ */

int pickle_words(struct pickle *pickle, size_t count, uint64_t *index_out)
{
    if (pickle->words.count + count > pickle->words_max) {
        return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                     "the pickle holds more than %" PRIu64 " values", pickle->words_max);
    }
    TRY(grow(&pickle->words, count, sizeof(uint64_t)));
    *index_out = pickle->words.count;
    memset(pickle_word(pickle, *index_out), 0, count * sizeof(uint64_t));
    pickle->words.count += count;
    return 0;
}

int pickle_texts(struct pickle *pickle, const void *bytes, size_t size, size_t *at_out)
{
    TRY(grow(&pickle->texts, size + 1, 1));
    *at_out = pickle->texts.count;
    memcpy((char *)pickle->texts.items + *at_out, bytes, size);
    pickle->texts.count += size;
    return 0;
}

static uint64_t uint_at(const uint8_t *at, size_t size)
{
    struct reader reader = reader_of(at, size);
    return read_uint(&reader, size);
}

/* Bytes of the length that follows an opcode with a counted body; 0: it has none. */
static size_t length_bytes(uint8_t opcode)
{
    switch (opcode) {
    case 0x8c: /* SHORT_BINUNICODE */
    case 'U':  /* SHORT_BINSTRING */
    case 'C':  /* SHORT_BINBYTES */
    case 0x8a: /* LONG1 */
        return 1;
    case 'X':  /* BINUNICODE */
    case 'T':  /* BINSTRING */
    case 'B':  /* BINBYTES */
    case 0x8b: /* LONG4 */
        return 4;
    case 0x8d: /* BINUNICODE8 */
    case 0x8e: /* BINBYTES8 */
    case 0x96: /* BYTEARRAY8 */
        return 8;
    default:
        return 0;
    }
}

const uint8_t *pickle_text(const struct pickle *pickle, uint64_t value, size_t *size_out)
{
    const uint8_t *opcode = pickle->bytes + value_index(value);
    size_t width = length_bytes(*opcode);
    *size_out = (size_t)uint_at(opcode + 1, width);
    return opcode + 1 + width;
}

size_t pickle_tuple(const struct pickle *pickle, uint64_t value, const uint64_t **items_out)
{
    if (value_type(value) != SOLO_CKPT_TUPLE) {
        return 0;
    }
    uint64_t *node = pickle_word(pickle, value_index(value));
    *items_out = node + 1;
    return (size_t)(*node & ~TUPLE_SEEN);
}

/* ---- the stack --------------------------------------------------------------------------- */

static int push(struct pickle *pickle, uint64_t value)
{
    TRY(grow(&pickle->stack, 1, sizeof value));
    ((uint64_t *)pickle->stack.items)[pickle->stack.count++] = value;
    return 0;
}

/* Values above the last mark. */
static size_t height(const struct pickle *pickle)
{
    size_t marks = pickle->marks.count;
    return pickle->stack.count - (marks ? (size_t)((uint64_t *)pickle->marks.items)[marks - 1] : 0);
}

static int need(struct pickle *pickle, size_t count)
{
    return height(pickle) < count ? damaged(pickle, "its stack runs empty") : 0;
}

static uint64_t *top(const struct pickle *pickle)
{
    return (uint64_t *)pickle->stack.items + pickle->stack.count - 1;
}

static int pop(struct pickle *pickle, uint64_t *out)
{
    TRY(need(pickle, 1));
    *out = *top(pickle);
    pickle->stack.count--;
    return 0;
}

/* The values above the last mark, which stay readable until the next push. */
static int pop_to_mark(struct pickle *pickle, const uint64_t **items_out, size_t *count_out)
{
    if (!pickle->marks.count) {
        return damaged(pickle, "a mark is missing");
    }
    *count_out = height(pickle);
    pickle->stack.count -= *count_out;
    pickle->marks.count--;
    *items_out = (uint64_t *)pickle->stack.items + pickle->stack.count;
    return 0;
}

/* ---- containers -------------------------------------------------------------------------- */

static int push_tuple(struct pickle *pickle, const uint64_t *items, size_t count)
{
    uint64_t index;
    TRY(pickle_words(pickle, count + 1, &index));
    *pickle_word(pickle, index) = count;
    if (count) {
        memcpy(pickle_word(pickle, index + 1), items, count * sizeof *items);
    }
    return push(pickle, value_of(SOLO_CKPT_TUPLE, index));
}

static int push_tuple_of_top(struct pickle *pickle, size_t count)
{
    TRY(need(pickle, count));
    pickle->stack.count -= count;
    return push_tuple(pickle, (uint64_t *)pickle->stack.items + pickle->stack.count, count);
}

static int push_tuple_of_mark(struct pickle *pickle)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(pop_to_mark(pickle, &items, &count));
    return push_tuple(pickle, items, count);
}

static int push_container(struct pickle *pickle, enum solo_ckpt_type type)
{
    uint64_t index;
    TRY(pickle_words(pickle, NODE_WORDS, &index));
    return push(pickle, value_of(type, index));
}

static int add_run(struct pickle *pickle, uint64_t node, const uint64_t *items, size_t count)
{
    if (!count) {
        return 0;
    }
    uint64_t run;
    TRY(pickle_words(pickle, count + 2, &run));
    uint64_t *words = pickle_word(pickle, run);
    words[1] = count;
    memcpy(words + 2, items, count * sizeof *items);
    uint64_t *head = pickle_word(pickle, node);
    if (head[NODE_LAST]) {
        *pickle_word(pickle, head[NODE_LAST]) = run;
    } else {
        head[NODE_FIRST] = run;
    }
    head[NODE_LAST] = run;
    return 0;
}

static bool takes_items(const struct pickle *pickle, uint64_t target, bool keyed)
{
    unsigned type = value_type(target);
    if (type == SOLO_CKPT_CALL) {
        uint64_t function = pickle_word(pickle, value_index(target))[CALL_FUNCTION];
        enum global_id id = pickle_global(pickle, function)->id;
        return id == GLOBAL_UNKNOWN ? pickle->options->placeholders : keyed && id == GLOBAL_DICT;
    }
    return keyed ? type == SOLO_CKPT_DICT : type == SOLO_CKPT_LIST;
}

/* SETITEM(S) and APPEND(S): on dicts and lists alone, as the rules since CVE-2026-24747 say. */
static int add_items(struct pickle *pickle, const uint64_t *items, size_t count, bool keyed)
{
    TRY(need(pickle, 1));
    uint64_t target = *top(pickle);
    if (!takes_items(pickle, target, keyed)) {
        return damaged(pickle, keyed ? "items are set on something that is not a dict"
                                     : "items are appended to something that is not a list");
    }
    if (keyed && count % 2) {
        return damaged(pickle, "a key has no value");
    }
    uint64_t *node = pickle_word(pickle, value_index(target));
    if (node[NODE_FLAGS] & FLAG_FROZEN) {
        return damaged(pickle, "a container changes after it was used");
    }
    node[NODE_FLAGS] |= keyed && value_type(target) == SOLO_CKPT_CALL ? FLAG_KEYED : 0;
    return add_run(pickle, value_index(target), items, count);
}

static int add_items_of_mark(struct pickle *pickle, bool keyed)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(pop_to_mark(pickle, &items, &count));
    return add_items(pickle, items, count, keyed);
}

static int add_items_of_top(struct pickle *pickle, size_t count, bool keyed)
{
    TRY(need(pickle, count + 1));
    pickle->stack.count -= count;
    return add_items(pickle, (uint64_t *)pickle->stack.items + pickle->stack.count, count, keyed);
}

static int add_to_set(struct pickle *pickle)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(pop_to_mark(pickle, &items, &count));
    TRY(need(pickle, 1));
    if (value_type(*top(pickle)) != SOLO_CKPT_SET) {
        return damaged(pickle, "items are added to something that is not a set");
    }
    return add_run(pickle, value_index(*top(pickle)), items, count);
}

static int push_container_of_mark(struct pickle *pickle, enum solo_ckpt_type type)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(pop_to_mark(pickle, &items, &count));
    if (type == SOLO_CKPT_DICT && count % 2) {
        return damaged(pickle, "a key has no value");
    }
    uint64_t index;
    TRY(pickle_words(pickle, NODE_WORDS, &index));
    TRY(add_run(pickle, index, items, count));
    return push(pickle, value_of(type, index));
}

/* ---- memo -------------------------------------------------------------------------------- */

#define UNSET UINT64_MAX

/* An index no larger than the opcodes before it could have filled: memory stays bounded. */
static int memo_put(struct pickle *pickle, uint64_t index)
{
    TRY(need(pickle, 1));
    if (index > pickle->at) {
        return damaged(pickle, "a memo index is absurd");
    }
    if (index >= pickle->memo.count) {
        size_t more = (size_t)index + 1 - pickle->memo.count;
        TRY(grow(&pickle->memo, more, sizeof(uint64_t)));
        memset((uint64_t *)pickle->memo.items + pickle->memo.count, 0xff, more * sizeof(uint64_t));
        pickle->memo.count += more;
    }
    ((uint64_t *)pickle->memo.items)[index] = *top(pickle);
    return 0;
}

static int memo_get(struct pickle *pickle, uint64_t index)
{
    if (index >= pickle->memo.count || ((uint64_t *)pickle->memo.items)[index] == UNSET) {
        return damaged(pickle, "it refers to a memo that was never set");
    }
    return push(pickle, ((uint64_t *)pickle->memo.items)[index]);
}

/* ---- opcodes with a body ------------------------------------------------------------------ */

static int push_int(struct pickle *pickle, int64_t value)
{
    return push(pickle, value_of(SOLO_CKPT_INT, (uint64_t)value));
}

/* A long that fits is an int like any other. */
static int push_long(struct pickle *pickle, size_t opcode_at, const uint8_t *body, size_t size)
{
    if (size > 7) {
        return push(pickle, value_of(SOLO_CKPT_LONG, opcode_at));
    }
    uint64_t value = uint_at(body, size);
    if (size && body[size - 1] & 0x80) {
        value |= size < 8 ? UINT64_MAX << (8 * size) : 0;
    }
    return push_int(pickle, (int64_t)value);
}

static int push_counted(struct pickle *pickle, uint8_t opcode, enum solo_ckpt_type type)
{
    size_t opcode_at = pickle->at - 1, width = length_bytes(opcode);
    if (pickle->size - pickle->at < width) {
        return ran_out(pickle);
    }
    uint64_t size = uint_at(pickle->bytes + pickle->at, width);
    pickle->at += width;
    if (size > pickle->size - pickle->at) {
        return size > (1ull << 40) ? damaged(pickle, "a length is absurd") : ran_out(pickle);
    }
    const uint8_t *body = pickle->bytes + pickle->at;
    pickle->at += (size_t)size;
    if (type == SOLO_CKPT_LONG) {
        return push_long(pickle, opcode_at, body, (size_t)size);
    }
    return push(pickle, value_of(type, opcode_at));
}

static int take(struct pickle *pickle, size_t size, uint64_t *out)
{
    if (pickle->size - pickle->at < size) {
        return ran_out(pickle);
    }
    *out = uint_at(pickle->bytes + pickle->at, size);
    pickle->at += size;
    return 0;
}

static int push_global_line(struct pickle *pickle)
{
    const uint8_t *start = pickle->bytes + pickle->at;
    size_t left = pickle->size - pickle->at;
    const uint8_t *first = memchr(start, '\n', left);
    const uint8_t *second =
        first ? memchr(first + 1, '\n', left - (size_t)(first + 1 - start)) : NULL;
    if (!second) {
        return ran_out(pickle);
    }
    uint64_t value;
    TRY(pickle_global_add(pickle, start, (size_t)(first - start), first + 1,
                          (size_t)(second - first - 1), &value));
    pickle->at += (size_t)(second + 1 - start);
    return push(pickle, value);
}

static int push_stack_global(struct pickle *pickle)
{
    uint64_t name, module, value;
    TRY(pop(pickle, &name));
    TRY(pop(pickle, &module));
    if (value_type(name) != SOLO_CKPT_STR || value_type(module) != SOLO_CKPT_STR) {
        return damaged(pickle, "a global's name is not text");
    }
    size_t name_bytes, module_bytes;
    const uint8_t *name_at = pickle_text(pickle, name, &name_bytes);
    const uint8_t *module_at = pickle_text(pickle, module, &module_bytes);
    TRY(pickle_global_add(pickle, module_at, module_bytes, name_at, name_bytes, &value));
    return push(pickle, value);
}

static int push_call(struct pickle *pickle, bool created)
{
    uint64_t arguments, function, value;
    TRY(pop(pickle, &arguments));
    TRY(pop(pickle, &function));
    TRY(pickle_call(pickle, function, arguments, created, &value));
    return push(pickle, value);
}

static int build(struct pickle *pickle)
{
    uint64_t state;
    TRY(pop(pickle, &state));
    TRY(need(pickle, 1));
    uint64_t target = *top(pickle);
    if (value_type(target) != SOLO_CKPT_CALL) {
        return damaged(pickle, "state is given to something that takes none");
    }
    uint64_t *node = pickle_word(pickle, value_index(target));
    if (node[CALL_STATE] != SOLO_CKPT_NONE || node[NODE_FLAGS] & FLAG_FROZEN) {
        return damaged(pickle, "state is given twice, or after use");
    }
    node[CALL_STATE] = state;
    return 0;
}

static int persistent(struct pickle *pickle)
{
    uint64_t id, value;
    TRY(pop(pickle, &id));
    TRY(pickle_persistent(pickle, id, &value));
    return push(pickle, value);
}

static int protocol(struct pickle *pickle)
{
    uint64_t number;
    TRY(take(pickle, 1, &number));
    if (number > 5) {
        return damaged(pickle, "its protocol is unknown");
    }
    pickle->protocol = (uint32_t)number;
    return 0;
}

static int push_number(struct pickle *pickle, uint8_t opcode)
{
    uint64_t number;
    TRY(take(pickle, opcode == 'J' ? 4 : opcode == 'K' ? 1 : 2, &number));
    return push_int(pickle, opcode == 'J' ? (int32_t)number : (int64_t)number);
}

static int push_float(struct pickle *pickle)
{
    uint64_t unused;
    size_t at = pickle->at - 1;
    TRY(take(pickle, 8, &unused));
    return push(pickle, value_of(SOLO_CKPT_FLOAT, at));
}

static int by_memo(struct pickle *pickle, uint8_t opcode)
{
    uint64_t index;
    TRY(take(pickle, opcode == 'q' || opcode == 'h' ? 1 : 4, &index));
    return opcode == 'q' || opcode == 'r' ? memo_put(pickle, index) : memo_get(pickle, index);
}

static int unsupported(struct pickle *pickle, uint8_t opcode)
{
    return FAULT(pickle->faults, SOLO_CKPT_UNSUPPORTED, pickle->base + pickle->at - 1,
                 "opcode 0x%02x at byte %zu of the pickle is not one of a checkpoint's", opcode,
                 pickle->at - 1);
}

static int step_stack(struct pickle *pickle, uint8_t opcode)
{
    uint64_t unused;
    switch (opcode) {
    case '(': /* MARK */
        TRY(grow(&pickle->marks, 1, sizeof(uint64_t)));
        ((uint64_t *)pickle->marks.items)[pickle->marks.count++] = pickle->stack.count;
        return 0;
    case '0': /* POP */
        if (!height(pickle) && pickle->marks.count) {
            pickle->marks.count--;
            return 0;
        }
        return pop(pickle, &unused);
    case '1': { /* POP_MARK */
        const uint64_t *items;
        size_t count;
        return pop_to_mark(pickle, &items, &count);
    }
    case '2': /* DUP */
        TRY(need(pickle, 1));
        return push(pickle, *top(pickle));
    case 0x94: /* MEMOIZE */
        return memo_put(pickle, pickle->memo.count);
    case 0x95: /* FRAME */
        return take(pickle, 8, &unused);
    default:
        return unsupported(pickle, opcode);
    }
}

static int step_container(struct pickle *pickle, uint8_t opcode)
{
    switch (opcode) {
    case ')':
        return push_tuple(pickle, NULL, 0);
    case 0x85:
    case 0x86:
    case 0x87:
        return push_tuple_of_top(pickle, opcode - 0x84u);
    case 't':
        return push_tuple_of_mark(pickle);
    case ']':
        return push_container(pickle, SOLO_CKPT_LIST);
    case '}':
        return push_container(pickle, SOLO_CKPT_DICT);
    case 0x8f: /* EMPTY_SET */
        return push_container(pickle, SOLO_CKPT_SET);
    case 'l':
        return push_container_of_mark(pickle, SOLO_CKPT_LIST);
    case 'd':
        return push_container_of_mark(pickle, SOLO_CKPT_DICT);
    case 0x91: /* FROZENSET */
        return push_container_of_mark(pickle, SOLO_CKPT_FROZENSET);
    case 0x90: /* ADDITEMS */
        return add_to_set(pickle);
    case 'a':
        return add_items_of_top(pickle, 1, false);
    case 'e':
        return add_items_of_mark(pickle, false);
    case 's':
        return add_items_of_top(pickle, 2, true);
    case 'u':
        return add_items_of_mark(pickle, true);
    default:
        return step_stack(pickle, opcode);
    }
}

static int step(struct pickle *pickle, uint8_t opcode)
{
    switch (opcode) {
    case 0x80:
        return protocol(pickle);
    case 'N':
        return push(pickle, value_of(SOLO_CKPT_NIL, 0));
    case 0x88:
        return push(pickle, value_of(SOLO_CKPT_TRUE, 0));
    case 0x89:
        return push(pickle, value_of(SOLO_CKPT_FALSE, 0));
    case 'J':
    case 'K':
    case 'M':
        return push_number(pickle, opcode);
    case 'G':
        return push_float(pickle);
    case 'X':
    case 0x8c:
    case 0x8d:
        return push_counted(pickle, opcode, SOLO_CKPT_STR);
    case 'U':
    case 'T':
        return push_counted(pickle, opcode, SOLO_CKPT_OLD_STR);
    case 'C':
    case 'B':
    case 0x8e:
        return push_counted(pickle, opcode, SOLO_CKPT_BYTES);
    case 0x96:
        return push_counted(pickle, opcode, SOLO_CKPT_BYTEARRAY);
    case 0x8a:
    case 0x8b:
        return push_counted(pickle, opcode, SOLO_CKPT_LONG);
    case 'q':
    case 'r':
    case 'h':
    case 'j':
        return by_memo(pickle, opcode);
    case 'c':
        return push_global_line(pickle);
    case 0x93:
        return push_stack_global(pickle);
    case 'R':
        return push_call(pickle, false);
    case 0x81:
        return push_call(pickle, true);
    case 'b':
        return build(pickle);
    case 'Q':
        return persistent(pickle);
    default:
        return step_container(pickle, opcode);
    }
}

int pickle_run(struct pickle *pickle)
{
    pickle->stack.count = pickle->marks.count = pickle->memo.count = 0;
    pickle->protocol = 0;
    if (!pickle->words.count) {
        uint64_t unused; /* index 0 means "no run" */
        TRY(pickle_words(pickle, 1, &unused));
    }
    while (pickle->at < pickle->size) {
        uint8_t opcode = pickle->bytes[pickle->at++];
        if (opcode == '.') {
            TRY(pop(pickle, &pickle->root));
            return pickle->stack.count ? damaged(pickle, "it ends with values left over") : 0;
        }
        TRY(step(pickle, opcode));
    }
    return ran_out(pickle);
}
