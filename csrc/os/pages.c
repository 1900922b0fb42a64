#include "os/pages.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "os/crew.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HUGE_BYTES ((uintptr_t)2 << 20)
#define GAP_BYTES  ((uintptr_t)16 << 10) /* what an allocator may put between two tensors */
#define RUN_BYTES  ((uintptr_t)1 << 20)  /* below, faults cost nothing to speak of */
#define DEAR_US    500u                  /* 512 small pages cost about as much */

int pages_add(struct pages *pages, const void *at, size_t size)
{
    struct pages_run *last = pages->count ? &pages->runs[pages->count - 1] : NULL;
    uintptr_t begin = (uintptr_t)at, end = begin + size;
    if (last && begin >= last->begin && begin <= last->end + GAP_BYTES) {
        last->end = end > last->end ? end : last->end;
        return 0;
    }
    if (pages->count == pages->room) {
        size_t room = pages->room ? 2 * pages->room : 16;
        struct pages_run *runs = realloc(pages->runs, room * sizeof *runs);
        if (!runs) {
            return err_set(SOLO_ENOMEM, "no memory to plan reads");
        }
        pages->runs = runs;
        pages->room = room;
    }
    MUST(pages->runs != NULL);
    pages->runs[pages->count++] = (struct pages_run){begin, end};
    return 0;
}

static int by_address(const void *a, const void *b)
{
    const struct pages_run *left = a, *right = b;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

static void advise(const struct pages *pages, int advice)
{
    for (size_t i = 0; i < pages->count; i++) {
        uintptr_t begin = (pages->runs[i].begin + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
        uintptr_t end = pages->runs[i].end & ~(HUGE_BYTES - 1);
        if (begin < end) { /* refused: small pages, slower and as right */
            madvise((void *)begin, end - begin, advice);
        }
    }
}

void pages_ready(struct pages *pages)
{
    size_t joined = 0;
    if (pages->count) {
        qsort(pages->runs, pages->count, sizeof *pages->runs, by_address);
    }
    for (size_t i = 0; i < pages->count; i++) {
        struct pages_run *last = joined ? &pages->runs[joined - 1] : NULL;
        if (last && pages->runs[i].begin <= last->end + GAP_BYTES) {
            last->end = pages->runs[i].end > last->end ? pages->runs[i].end : last->end;
        } else {
            pages->runs[joined++] = pages->runs[i];
        }
    }
    pages->count = 0;
    for (size_t i = 0; i < joined; i++) {
        if (pages->runs[i].end - pages->runs[i].begin >= RUN_BYTES) {
            pages->runs[pages->count++] = pages->runs[i];
        }
    }
}

static const struct pages_run *find(const struct pages *pages, uintptr_t at)
{
    size_t low = 0, high = pages->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pages->runs[middle].end <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < pages->count && pages->runs[low].begin <= at ? &pages->runs[low] : NULL;
}

/* Of one page; that in the middle stands for a stretch, as neighbours share those at its ends. */
static bool is_there(uintptr_t at, uintptr_t page)
{
    unsigned char told = 0;
    return mincore((void *)(at & ~(page - 1)), page, &told) == 0 && told & 1;
}

static void populate(struct pages *pages, uintptr_t begin, uintptr_t end)
{
    if (madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) < 0 && errno == EINVAL) {
        atomic_store(&pages->off, 1);
    }
}

/* Whether the next stretch is to be a huge page. */
static bool wants_huge(struct pages *pages, uintptr_t huge)
{
    int untried = PAGES_UNTRIED;
    if (atomic_compare_exchange_strong(&pages->huge, &untried, PAGES_TRYING)) {
        madvise((void *)huge, HUGE_BYTES, MADV_HUGEPAGE); /* of this one alone */
        return true;
    }
    return untried == PAGES_CHEAP; /* what it was */
}

static void judge(struct pages *pages, uint64_t spent_us)
{
    int next = spent_us > DEAR_US ? PAGES_DEAR : PAGES_CHEAP;
    int trying = PAGES_TRYING;
    if (next == PAGES_CHEAP && atomic_load(&pages->huge) == PAGES_TRYING) {
        advise(pages, MADV_HUGEPAGE); /* before others are told that it is so */
    }
    if (next == PAGES_CHEAP) {
        atomic_compare_exchange_strong(&pages->huge, &trying, PAGES_CHEAP);
    } else if (atomic_exchange(&pages->huge, PAGES_DEAR) != PAGES_DEAR) {
        advise(pages, MADV_NOHUGEPAGE); /* where the system gives them unasked */
    }
}

const uint8_t *pages_give(struct pages *pages, const uint8_t *at)
{
    uintptr_t here = (uintptr_t)at, huge = here & ~(HUGE_BYTES - 1);
    uintptr_t end = huge + HUGE_BYTES;
    const struct pages_run *run = atomic_load(&pages->off) ? NULL : find(pages, here);
    if (!run) {
        return (const uint8_t *)end;
    }
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t stop = end < run->end ? end : run->end;
    if (is_there(here + (stop - here) / 2, page)) {
        return (const uint8_t *)stop;
    }
    if (huge >= run->begin && end <= run->end && wants_huge(pages, huge)) {
        uint64_t before = crew_spent_us();
        populate(pages, huge, end);
        judge(pages, crew_spent_us() - before);
        return (const uint8_t *)end;
    }
    populate(pages, here & ~(page - 1), (stop + page - 1) & ~(page - 1));
    return (const uint8_t *)stop;
}

void pages_free(struct pages *pages)
{
    free(pages->runs);
    *pages = (struct pages){0};
}
