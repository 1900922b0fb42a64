/* The opcodes are those of CPython's Lib/pickletools.py. What a file of torch.save never
 * holds (INST, OBJ, EXT*, text protocols, out-of-band buffers) is a fault. */
#include "ckpt/pickle.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/pickle_stack.h"

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
                           &pickle->texts,   &pickle->names,    &pickle->views};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        grown_free(all[i]);
    }
    slots_free(&pickle->keys);
}

/* ---- opcodes with a body ------------------------------------------------------------------ */

static int push_int(struct pickle *pickle, int64_t value)
{
    return stack_push(pickle, value_of(SOLO_CKPT_INT, (uint64_t)value));
}

/* A long that fits is an int like any other. */
static int push_long(struct pickle *pickle, size_t opcode_at, const uint8_t *body, size_t size)
{
    if (size > 7) {
        return stack_push(pickle, value_of(SOLO_CKPT_LONG, opcode_at));
    }
    uint64_t value = stack_uint_at(body, size);
    if (size && body[size - 1] & 0x80) {
        value |= size < 8 ? UINT64_MAX << (8 * size) : 0;
    }
    return push_int(pickle, (int64_t)value);
}

static int push_counted(struct pickle *pickle, uint8_t opcode, enum solo_ckpt_type type)
{
    size_t opcode_at = pickle->at - 1, width = stack_length_bytes(opcode);
    if (pickle->size - pickle->at < width) {
        return stack_ran_out(pickle);
    }
    uint64_t size = stack_uint_at(pickle->bytes + pickle->at, width);
    pickle->at += width;
    if (size > pickle->size - pickle->at) {
        return size > (1ull << 40) ? stack_damaged(pickle, "a length is absurd")
                                   : stack_ran_out(pickle);
    }
    const uint8_t *body = pickle->bytes + pickle->at;
    pickle->at += (size_t)size;
    if (type == SOLO_CKPT_LONG) {
        return push_long(pickle, opcode_at, body, (size_t)size);
    }
    return stack_push(pickle, value_of(type, opcode_at));
}

static int take(struct pickle *pickle, size_t size, uint64_t *out)
{
    if (pickle->size - pickle->at < size) {
        return stack_ran_out(pickle);
    }
    *out = stack_uint_at(pickle->bytes + pickle->at, size);
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
        return stack_ran_out(pickle);
    }
    uint64_t value;
    TRY(pickle_global_add(pickle, start, (size_t)(first - start), first + 1,
                          (size_t)(second - first - 1), &value));
    pickle->at += (size_t)(second + 1 - start);
    return stack_push(pickle, value);
}

static int push_stack_global(struct pickle *pickle)
{
    uint64_t name, module, value;
    TRY(stack_pop(pickle, &name));
    TRY(stack_pop(pickle, &module));
    if (value_type(name) != SOLO_CKPT_STR || value_type(module) != SOLO_CKPT_STR) {
        return stack_damaged(pickle, "a global's name is not text");
    }
    size_t name_bytes, module_bytes;
    const uint8_t *name_at = pickle_text(pickle, name, &name_bytes);
    const uint8_t *module_at = pickle_text(pickle, module, &module_bytes);
    TRY(pickle_global_add(pickle, module_at, module_bytes, name_at, name_bytes, &value));
    return stack_push(pickle, value);
}

static int push_call(struct pickle *pickle, bool created)
{
    uint64_t arguments, function, value;
    TRY(stack_pop(pickle, &arguments));
    TRY(stack_pop(pickle, &function));
    TRY(pickle_call(pickle, function, arguments, created, &value));
    return stack_push(pickle, value);
}

static int build(struct pickle *pickle)
{
    uint64_t state;
    TRY(stack_pop(pickle, &state));
    TRY(stack_need(pickle, 1));
    uint64_t target = *stack_top(pickle);
    if (value_type(target) != SOLO_CKPT_CALL) {
        return stack_damaged(pickle, "state is given to something that takes none");
    }
    uint64_t *node = pickle_word(pickle, value_index(target));
    if (node[CALL_STATE] != SOLO_CKPT_NONE || node[NODE_FLAGS] & FLAG_FROZEN) {
        return stack_damaged(pickle, "state is given twice, or after use");
    }
    node[CALL_STATE] = state;
    return 0;
}

static int persistent(struct pickle *pickle)
{
    uint64_t id, value;
    TRY(stack_pop(pickle, &id));
    TRY(pickle_persistent(pickle, id, &value));
    return stack_push(pickle, value);
}

static int protocol(struct pickle *pickle)
{
    uint64_t number = 0;
    TRY(take(pickle, 1, &number));
    if (number > 5) {
        return stack_damaged(pickle, "its protocol is unknown");
    }
    pickle->protocol = (uint32_t)number;
    return 0;
}

static int push_number(struct pickle *pickle, uint8_t opcode)
{
    uint64_t number = 0;
    TRY(take(pickle, opcode == 'J' ? 4 : opcode == 'K' ? 1 : 2, &number));
    return push_int(pickle, opcode == 'J' ? (int32_t)number : (int64_t)number);
}

static int push_float(struct pickle *pickle)
{
    uint64_t unused;
    size_t at = pickle->at - 1;
    TRY(take(pickle, 8, &unused));
    return stack_push(pickle, value_of(SOLO_CKPT_FLOAT, at));
}

static int by_memo(struct pickle *pickle, uint8_t opcode)
{
    uint64_t index = 0;
    TRY(take(pickle, opcode == 'q' || opcode == 'h' ? 1 : 4, &index));
    return opcode == 'q' || opcode == 'r' ? stack_memo_put(pickle, index)
                                          : stack_memo_get(pickle, index);
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
        return stack_keep(pickle, &pickle->marks, pickle->stack.count);
    case '0': /* POP */
        if (!stack_height(pickle) && pickle->marks.count) {
            pickle->marks.count--;
            return 0;
        }
        return stack_pop(pickle, &unused);
    case '1': { /* POP_MARK */
        const uint64_t *items;
        size_t count;
        return stack_pop_to_mark(pickle, &items, &count);
    }
    case '2': /* DUP */
        TRY(stack_need(pickle, 1));
        return stack_push(pickle, *stack_top(pickle));
    case 0x94: /* MEMOIZE */
        return stack_memo_put(pickle, pickle->memo.count);
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
        return stack_push_tuple(pickle, NULL, 0);
    case 0x85:
    case 0x86:
    case 0x87:
        return stack_push_tuple_of_top(pickle, opcode - 0x84u);
    case 't':
        return stack_push_tuple_of_mark(pickle);
    case ']':
        return stack_push_container(pickle, SOLO_CKPT_LIST);
    case '}':
        return stack_push_container(pickle, SOLO_CKPT_DICT);
    case 0x8f: /* EMPTY_SET */
        return stack_push_container(pickle, SOLO_CKPT_SET);
    case 'l':
        return stack_push_container_of_mark(pickle, SOLO_CKPT_LIST);
    case 'd':
        return stack_push_container_of_mark(pickle, SOLO_CKPT_DICT);
    case 0x91: /* FROZENSET */
        return stack_push_container_of_mark(pickle, SOLO_CKPT_FROZENSET);
    case 0x90: /* ADDITEMS */
        return stack_add_to_set(pickle);
    case 'a':
        return stack_add_items_of_top(pickle, 1, false);
    case 'e':
        return stack_add_items_of_mark(pickle, false);
    case 's':
        return stack_add_items_of_top(pickle, 2, true);
    case 'u':
        return stack_add_items_of_mark(pickle, true);
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
        return stack_push(pickle, value_of(SOLO_CKPT_NIL, 0));
    case 0x88:
        return stack_push(pickle, value_of(SOLO_CKPT_TRUE, 0));
    case 0x89:
        return stack_push(pickle, value_of(SOLO_CKPT_FALSE, 0));
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
    TRY(grow(&pickle->stack, 1, sizeof(uint64_t)));
    if (!pickle->words.count) {
        uint64_t unused; /* index 0 means "no run" */
        TRY(pickle_words(pickle, 1, &unused));
    }
    while (pickle->at < pickle->size) {
        uint8_t opcode = pickle->bytes[pickle->at++];
        if (opcode == '.') {
            TRY(stack_pop(pickle, &pickle->root));
            return pickle->stack.count ? stack_damaged(pickle, "it ends with values left over") : 0;
        }
        TRY(step(pickle, opcode));
    }
    return stack_ran_out(pickle);
}
