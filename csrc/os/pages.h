/* pages.h - gives memory that nobody has touched its pages just before it is filled.
 *
 * A fault for each page costs more than the copy into it. Asking for many at once saves the
 * traps, and pages of 2 MiB save nearly all of it, except where a virtual machine has given its
 * free ones back to the host: there each costs milliseconds. So one is tried first, the time of
 * each is taken, and after a dear one the rest is filled in small pages.
 *
 * Filled by one thread; after pages_ready any thread may ask for pages. */
#ifndef SOLO_OS_PAGES_H
#define SOLO_OS_PAGES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct pages_run {
    uintptr_t begin, end;
};

enum pages_huge {
    PAGES_UNTRIED,
    PAGES_TRYING,
    PAGES_CHEAP,
    PAGES_DEAR, /* one has cost more than the small ones in its place */
};

struct pages {
    struct pages_run *runs; /* ours; after pages_ready the large ones alone, in order */
    size_t count, room;
    atomic_int huge; /* enum pages_huge */
    atomic_int off;  /* this kernel does not give pages on demand: faults do */
};

/* All zero is an empty one; SOLO_ENOMEM. The bytes will be written over. */
int pages_add(struct pages *pages, const void *at, size_t size);

/* Joins what lies together and forgets what is small. */
void pages_ready(struct pages *pages);

/* Gives pages to the stretch that begins at `at`, unless it has them; content stays. Returns
 * the stretch's end, beyond `at`. */
const uint8_t *pages_give(struct pages *pages, const uint8_t *at);

void pages_free(struct pages *pages);

#endif
