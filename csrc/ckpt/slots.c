#include "ckpt/slots.h"

#include <stdlib.h>

#include "base/err.h"

#define ROOM_FIRST 256u
#define STEPS_EACH 32u   /* at most half is in use: one or two are usual */
#define STEPS_FREE 4096u /* whatever a few names do is fine */

/* FNV-1a */
static uint32_t hash_of(const char *name, size_t size)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (uint8_t)name[i]) * 16777619u;
    }
    return hash;
}

static uint32_t row_of(uint64_t slot)
{
    return (uint32_t)slot - 1;
}

uint32_t slots_find(struct slots *slots, slots_same_fn same, const void *table, const char *name,
                    size_t size)
{
    if (slots->steps > STEPS_FREE + STEPS_EACH * slots->looks++) {
        return SLOTS_CROWDED;
    }
    uint32_t hash = hash_of(name, size), mask = slots->room - 1;
    for (uint32_t i = hash & mask; slots->room && slots->at[i]; i = (i + 1) & mask) {
        if (slots->at[i] >> 32 == hash && same(table, row_of(slots->at[i]), name, size)) {
            return row_of(slots->at[i]);
        }
        slots->steps++;
    }
    return SLOTS_NONE;
}

static void put(struct slots *slots, uint64_t slot)
{
    uint32_t mask = slots->room - 1, i = (uint32_t)(slot >> 32) & mask;
    while (slots->at[i]) {
        i = (i + 1) & mask;
        slots->steps++;
    }
    slots->at[i] = slot;
    slots->used++;
}

int slots_add(struct slots *slots, uint32_t row, const char *name, size_t size)
{
    if (slots->used * 2 >= slots->room) {
        struct slots wider = *slots;
        wider.room = slots->room ? slots->room * 2 : ROOM_FIRST;
        wider.used = 0;
        wider.at = calloc(wider.room, sizeof *wider.at);
        if (!wider.at) {
            return err_set(SOLO_ENOMEM, "no memory for %u names", wider.room);
        }
        for (uint32_t i = 0; i < slots->room; i++) {
            if (slots->at[i]) {
                put(&wider, slots->at[i]);
            }
        }
        free(slots->at);
        *slots = wider;
    }
    put(slots, (uint64_t)hash_of(name, size) << 32 | (row + 1));
    return 0;
}

void slots_free(struct slots *slots)
{
    free(slots->at);
    *slots = (struct slots){0};
}
