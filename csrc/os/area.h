/* area.h - large zero-filled memory straight from the kernel: a page is taken when it is first
 * touched; huge pages where there are any. One thread per struct. */
#ifndef SOLO_OS_AREA_H
#define SOLO_OS_AREA_H

#include <stddef.h>
#include <stdint.h>

struct area {
    void *base; /* NULL: none; page-aligned otherwise */
    size_t size;
};

/* Size 0 gives an empty area. SOLO_ENOMEM with the size in words. */
int area_open(struct area *area, size_t size, const char *what);

/* At least `size` bytes; what was in it is lost if it has to grow. */
int area_reserve(struct area *area, size_t size, const char *what);

/* Takes all its pages now, so that nobody waits for them later. A wish: without it, or without
 * memory, they come when they are touched. */
void area_populate(const struct area *area);

void area_close(struct area *area); /* zeroed structs are allowed */

#endif
