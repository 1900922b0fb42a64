/* slots.h - the rows of a table by name: open addressing, linear.
 *
 * The names are the file's, which could choose a million that all land in one place. So steps are
 * counted: beyond what names not made for it need, looking is over (SLOTS_CROWDED). */
#ifndef SOLO_CKPT_SLOTS_H
#define SOLO_CKPT_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLOTS_NONE    UINT32_MAX
#define SLOTS_CROWDED (UINT32_MAX - 1)

/* Whether this row of the caller's table has this name. */
typedef bool (*slots_same_fn)(const void *table, uint32_t row, const char *name, size_t size);

struct slots {    /* all zero is an empty one */
    uint64_t *at; /* hash and, below it, row + 1; 0: free */
    uint32_t room, used;
    uint64_t looks, steps;
};

/* The row with this name, or SLOTS_NONE, or SLOTS_CROWDED. */
uint32_t slots_find(struct slots *slots, slots_same_fn same, const void *table, const char *name,
                    size_t size);

/* A row whose name is not there yet. SOLO_ENOMEM. */
int slots_add(struct slots *slots, uint32_t row, const char *name, size_t size);

void slots_free(struct slots *slots);

#endif
