#include "ckpt/pickle_stack.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"

int stack_damaged(struct pickle *pickle, const char *what)
{
    return FAULT(pickle->faults, SOLO_CKPT_DAMAGED, pickle->base + pickle->at,
                 "the pickle is damaged at byte %zu: %s", pickle->at, what);
}

int stack_ran_out(struct pickle *pickle)
{
    pickle->ran_out = true;
    return FAULT(pickle->faults, SOLO_CKPT_TRUNCATED, pickle->base + pickle->size,
                 "the pickle is cut at byte %zu", pickle->size);
}

/* ---- values ------------------------------------------------------------------------------ */

static int too_many(struct pickle *pickle)
{
    return FAULT(pickle->faults, SOLO_CKPT_LIMIT, pickle->base + pickle->at,
                 "the pickle holds more than %" PRIu64 " values", pickle->words_max);
}

int pickle_words(struct pickle *pickle, size_t count, uint64_t *index_out)
{
    if (pickle->words.count + count > pickle->words_max) {
        return too_many(pickle);
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

uint64_t stack_uint_at(const uint8_t *at, size_t size)
{
    struct reader reader = reader_of(at, size);
    return read_uint(&reader, size);
}

/* Bytes of the length that follows an opcode with a counted body; 0: it has none. */
size_t stack_length_bytes(uint8_t opcode)
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
    size_t width = stack_length_bytes(*opcode);
    *size_out = (size_t)stack_uint_at(opcode + 1, width);
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

int stack_keep(struct pickle *pickle, struct grown *grown, uint64_t value)
{
    if (grown->count >= pickle->words_max) {
        return too_many(pickle);
    }
    TRY(grow(grown, 1, sizeof value));
    ((uint64_t *)grown->items)[grown->count++] = value;
    return 0;
}

int stack_push(struct pickle *pickle, uint64_t value)
{
    return stack_keep(pickle, &pickle->stack, value);
}

/* Values above the last mark. */
size_t stack_height(const struct pickle *pickle)
{
    size_t marks = pickle->marks.count;
    return pickle->stack.count - (marks ? (size_t)((uint64_t *)pickle->marks.items)[marks - 1] : 0);
}

int stack_need(struct pickle *pickle, size_t count)
{
    return stack_height(pickle) < count ? stack_damaged(pickle, "its stack runs empty") : 0;
}

uint64_t *stack_top(const struct pickle *pickle)
{
    return (uint64_t *)pickle->stack.items + pickle->stack.count - 1;
}

int stack_pop(struct pickle *pickle, uint64_t *out)
{
    TRY(stack_need(pickle, 1));
    *out = *stack_top(pickle);
    pickle->stack.count--;
    return 0;
}

/* The values above the last mark, which stay readable until the next push. */
int stack_pop_to_mark(struct pickle *pickle, const uint64_t **items_out, size_t *count_out)
{
    if (!pickle->marks.count) {
        return stack_damaged(pickle, "a mark is missing");
    }
    *count_out = stack_height(pickle);
    pickle->stack.count -= *count_out;
    pickle->marks.count--;
    *items_out = (uint64_t *)pickle->stack.items + pickle->stack.count;
    return 0;
}

/* ---- containers -------------------------------------------------------------------------- */

int stack_push_tuple(struct pickle *pickle, const uint64_t *items, size_t count)
{
    uint64_t index = 0;
    TRY(pickle_words(pickle, count + 1, &index));
    *pickle_word(pickle, index) = count;
    if (count) {
        memcpy(pickle_word(pickle, index + 1), items, count * sizeof *items);
    }
    return stack_push(pickle, value_of(SOLO_CKPT_TUPLE, index));
}

int stack_push_tuple_of_top(struct pickle *pickle, size_t count)
{
    TRY(stack_need(pickle, count));
    pickle->stack.count -= count;
    return stack_push_tuple(pickle, (uint64_t *)pickle->stack.items + pickle->stack.count, count);
}

int stack_push_tuple_of_mark(struct pickle *pickle)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(stack_pop_to_mark(pickle, &items, &count));
    return stack_push_tuple(pickle, items, count);
}

int stack_push_container(struct pickle *pickle, enum solo_ckpt_type type)
{
    uint64_t index = 0;
    TRY(pickle_words(pickle, NODE_WORDS, &index));
    return stack_push(pickle, value_of(type, index));
}

static int add_run(struct pickle *pickle, uint64_t node, const uint64_t *items, size_t count)
{
    if (!count) {
        return 0;
    }
    uint64_t run = 0;
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
    TRY(stack_need(pickle, 1));
    uint64_t target = *stack_top(pickle);
    if (!takes_items(pickle, target, keyed)) {
        return stack_damaged(pickle, keyed ? "items are set on something that is not a dict"
                                           : "items are appended to something that is not a list");
    }
    if (keyed && count % 2) {
        return stack_damaged(pickle, "a key has no value");
    }
    uint64_t *node = pickle_word(pickle, value_index(target));
    if (node[NODE_FLAGS] & FLAG_FROZEN) {
        return stack_damaged(pickle, "a container changes after it was used");
    }
    node[NODE_FLAGS] |= keyed && value_type(target) == SOLO_CKPT_CALL ? FLAG_KEYED : 0;
    return add_run(pickle, value_index(target), items, count);
}

int stack_add_items_of_mark(struct pickle *pickle, bool keyed)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(stack_pop_to_mark(pickle, &items, &count));
    return add_items(pickle, items, count, keyed);
}

int stack_add_items_of_top(struct pickle *pickle, size_t count, bool keyed)
{
    TRY(stack_need(pickle, count + 1));
    pickle->stack.count -= count;
    return add_items(pickle, (uint64_t *)pickle->stack.items + pickle->stack.count, count, keyed);
}

int stack_add_to_set(struct pickle *pickle)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(stack_pop_to_mark(pickle, &items, &count));
    TRY(stack_need(pickle, 1));
    if (value_type(*stack_top(pickle)) != SOLO_CKPT_SET) {
        return stack_damaged(pickle, "items are added to something that is not a set");
    }
    return add_run(pickle, value_index(*stack_top(pickle)), items, count);
}

int stack_push_container_of_mark(struct pickle *pickle, enum solo_ckpt_type type)
{
    const uint64_t *items = NULL;
    size_t count = 0;
    TRY(stack_pop_to_mark(pickle, &items, &count));
    if (type == SOLO_CKPT_DICT && count % 2) {
        return stack_damaged(pickle, "a key has no value");
    }
    uint64_t index = 0;
    TRY(pickle_words(pickle, NODE_WORDS, &index));
    TRY(add_run(pickle, index, items, count));
    return stack_push(pickle, value_of(type, index));
}

/* ---- memo -------------------------------------------------------------------------------- */

#define UNSET UINT64_MAX

/* An index no larger than the opcodes before it could have filled: memory stays bounded. */
int stack_memo_put(struct pickle *pickle, uint64_t index)
{
    TRY(stack_need(pickle, 1));
    if (index > pickle->at) {
        return stack_damaged(pickle, "a memo index is absurd");
    }
    if (index >= pickle->words_max) {
        return too_many(pickle);
    }
    if (index >= pickle->memo.count) {
        size_t more = (size_t)index + 1 - pickle->memo.count;
        TRY(grow(&pickle->memo, more, sizeof(uint64_t)));
        memset((uint64_t *)pickle->memo.items + pickle->memo.count, 0xff, more * sizeof(uint64_t));
        pickle->memo.count += more;
    }
    ((uint64_t *)pickle->memo.items)[index] = *stack_top(pickle);
    return 0;
}

int stack_memo_get(struct pickle *pickle, uint64_t index)
{
    if (index >= pickle->memo.count || ((uint64_t *)pickle->memo.items)[index] == UNSET) {
        return stack_damaged(pickle, "it refers to a memo that was never set");
    }
    return stack_push(pickle, ((uint64_t *)pickle->memo.items)[index]);
}
