/* grow.h - an array that doubles. */
#ifndef SOLO_CKPT_GROW_H
#define SOLO_CKPT_GROW_H

#include <stdlib.h>

#include "base/err.h"

struct grown {
    void *items;
    size_t count, room;
};

/* Room for `more` items of item_bytes beyond count. */
static inline int grow(struct grown *grown, size_t more, size_t item_bytes)
{
    if (grown->room - grown->count >= more) {
        return 0;
    }
    size_t room = grown->room ? grown->room : 64;
    while (room - grown->count < more) {
        room *= 2;
    }
    void *items = realloc(grown->items, room * item_bytes);
    if (!items) {
        return err_set(SOLO_ENOMEM, "no memory for %zu items of %zu bytes", room, item_bytes);
    }
    grown->items = items;
    grown->room = room;
    return 0;
}

static inline void grown_free(struct grown *grown)
{
    free(grown->items);
    *grown = (struct grown){0};
}

#endif
