#include "os/pages.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "check.h"

#define MIB ((size_t)1 << 20)

static uint8_t *map(size_t size)
{
    uint8_t *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static size_t resident(const uint8_t *at, size_t size)
{
    unsigned char *told = malloc(size / 4096);
    size_t count = 0;
    MUST(told && mincore((void *)(uintptr_t)at, size, told) == 0);
    for (size_t i = 0; i < size / 4096; i++) {
        count += told[i] & 1;
    }
    free(told);
    return count;
}

TEST(all_of_a_large_run_has_its_pages_when_asked_for_stretch_by_stretch)
{
    struct pages pages = {0};
    uint8_t *memory = map(16 * MIB);
    CHECK_EQ(pages_add(&pages, memory + 100, 9 * MIB), 0);
    pages_ready(&pages);
    const uint8_t *at = memory + 100;
    while (at < memory + 100 + 9 * MIB) {
        const uint8_t *next = pages_give(&pages, at);
        CHECK(next > at);
        at = next;
    }
    if (!atomic_load(&pages.off)) {
        CHECK_EQ(resident(memory, 9 * MIB + 4096), 9 * MIB / 4096 + 1);
        CHECK_EQ(resident(memory + 12 * MIB, 4 * MIB), 0);
    }
    pages_free(&pages);
    munmap(memory, 16 * MIB);
}

TEST(after_a_dear_huge_page_the_rest_still_gets_its_pages)
{
    struct pages pages = {0};
    uint8_t *memory = map(8 * MIB);
    CHECK_EQ(pages_add(&pages, memory, 8 * MIB), 0);
    pages_ready(&pages);
    atomic_store(&pages.huge, PAGES_DEAR);
    for (const uint8_t *at = memory; at < memory + 8 * MIB;) {
        at = pages_give(&pages, at);
    }
    if (!atomic_load(&pages.off)) {
        CHECK_EQ(resident(memory, 8 * MIB), 8 * MIB / 4096);
    }
    pages_free(&pages);
    munmap(memory, 8 * MIB);
}

TEST(memory_that_was_written_keeps_its_content)
{
    struct pages pages = {0};
    uint8_t *memory = map(4 * MIB);
    memset(memory, 7, 4 * MIB);
    CHECK_EQ(pages_add(&pages, memory, 4 * MIB), 0);
    pages_ready(&pages);
    for (const uint8_t *at = memory; at < memory + 4 * MIB;) {
        at = pages_give(&pages, at);
    }
    for (size_t i = 0; i < 4 * MIB; i++) {
        CHECK_EQ(memory[i], 7);
    }
    pages_free(&pages);
    munmap(memory, 4 * MIB);
}

TEST(small_neighbours_become_one_run_in_whatever_order_they_come)
{
    struct pages pages = {0};
    uint8_t *memory = map(4 * MIB);
    for (size_t i = 64; i-- > 0;) {
        CHECK_EQ(pages_add(&pages, memory + i * 32768, 32768 - 80), 0);
    }
    CHECK_EQ(pages_add(&pages, memory + 3 * MIB, 4096), 0);
    pages_ready(&pages);
    CHECK_EQ(pages.count, 1);
    CHECK_EQ(pages.runs[0].begin, (uintptr_t)memory);
    CHECK_EQ(pages.runs[0].end, (uintptr_t)memory + 2 * MIB - 80);
    pages_free(&pages);
    munmap(memory, 4 * MIB);
}

TEST(memory_of_no_run_is_left_alone)
{
    struct pages pages = {0};
    uint8_t *memory = map(4 * MIB);
    CHECK_EQ(pages_add(&pages, memory, 2 * MIB), 0);
    pages_ready(&pages);
    CHECK(pages_give(&pages, memory + 3 * MIB) > memory + 3 * MIB);
    CHECK_EQ(resident(memory, 4 * MIB), 0);
    pages_free(&pages);
    munmap(memory, 4 * MIB);
}
