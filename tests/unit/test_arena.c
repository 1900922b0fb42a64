/* Memory of an arena on a system with 64 KiB pages, which this one need not be: what it asks the
 * kernel for is looked at instead. */
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "solo_ckpt.h"

enum { PAGE = 64 << 10 };

static uintptr_t dropped_at;
static size_t dropped_size;

/* In place of the system's, for the library under test as well. */
long sysconf(int name)
{
    long (*real)(int) = (long (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? PAGE : real(name);
}

int madvise(void *at, size_t size, int advice)
{
    if (advice == MADV_DONTNEED) {
        dropped_at = (uintptr_t)at;
        dropped_size = size;
    }
    return 0;
}

TEST(an_arena_is_mapped_in_whole_pages_however_large_they_are)
{
    struct solo_arena arena;
    CHECK_EQ(solo_arena_map(100000, 0, &arena), 0);
    CHECK_EQ(arena.map_bytes % PAGE, 0);
    CHECK((uint8_t *)arena.at + 100000 <= (uint8_t *)arena.map + arena.map_bytes);
    solo_arena_unmap(&arena);
}

/* The kernel would take the rest of the last page too. */
TEST(of_what_is_dropped_only_pages_that_lie_in_it_whole_are_given_back)
{
    struct solo_arena arena;
    CHECK_EQ(solo_arena_map(16 * PAGE, 0, &arena), 0);
    uintptr_t base = (uintptr_t)arena.at, start = base + 5000, end = start + 4 * PAGE;
    solo_arena_drop(&arena, 5000, 4 * PAGE);
    CHECK(dropped_size > 0);
    CHECK_EQ(dropped_at % PAGE, 0);
    CHECK_EQ(dropped_size % PAGE, 0);
    CHECK(dropped_at >= start && dropped_at + dropped_size <= end);
    dropped_size = 0;
    solo_arena_drop(&arena, 100, PAGE / 2);
    CHECK_EQ(dropped_size, 0);
    solo_arena_unmap(&arena);
}
