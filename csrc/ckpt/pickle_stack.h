/* pickle_stack.h - the machine that a pickle drives: its stack, marks, memo and containers.
 *
 * Everything that runs empty, or is used as what it is not, is a fault of the file. */
#ifndef SOLO_CKPT_PICKLE_STACK_H
#define SOLO_CKPT_PICKLE_STACK_H

#include "ckpt/pickle.h"

int stack_damaged(struct pickle *pickle, const char *what); /* a fault at this opcode */
int stack_ran_out(struct pickle *pickle);                   /* the bytes end */

uint64_t stack_uint_at(const uint8_t *at, size_t size);
/* Bytes of the length that follows an opcode with a counted body; 0: it has none. */
size_t stack_length_bytes(uint8_t opcode);

/* One more of the stack's, the marks' or the memo's; a fault beyond the limit on values. */
int stack_keep(struct pickle *pickle, struct grown *grown, uint64_t value);
int stack_push(struct pickle *pickle, uint64_t value);
int stack_pop(struct pickle *pickle, uint64_t *out);
int stack_need(struct pickle *pickle, size_t count); /* above the last mark */
size_t stack_height(const struct pickle *pickle);    /* above the last mark */
uint64_t *stack_top(const struct pickle *pickle);
/* The values above the last mark, which stay readable until the next push. */
int stack_pop_to_mark(struct pickle *pickle, const uint64_t **items_out, size_t *count_out);

int stack_push_tuple(struct pickle *pickle, const uint64_t *items, size_t count);
int stack_push_tuple_of_top(struct pickle *pickle, size_t count);
int stack_push_tuple_of_mark(struct pickle *pickle);
int stack_push_container(struct pickle *pickle, enum solo_ckpt_type type);
int stack_push_container_of_mark(struct pickle *pickle, enum solo_ckpt_type type);
int stack_add_items_of_mark(struct pickle *pickle, bool keyed);
int stack_add_items_of_top(struct pickle *pickle, size_t count, bool keyed);
int stack_add_to_set(struct pickle *pickle);

int stack_memo_put(struct pickle *pickle, uint64_t index);
int stack_memo_get(struct pickle *pickle, uint64_t index);

#endif
