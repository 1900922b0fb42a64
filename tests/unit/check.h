/* check.h - a test is a sentence: TEST(refuses_a_chunk_out_of_turn) { CHECK(...); }
 *
 * A test program lists its tests with --list, runs those named, or all. The first check that
 * fails ends the program with the place and both values. */
#ifndef SOLO_TESTS_CHECK_H
#define SOLO_TESTS_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "solo.h"

struct check_test {
    const char *name;
    void (*run)(void);
    struct check_test *next;
};
extern struct check_test *check_tests;

#define TEST(name)                                                                                 \
    static void test_##name(void);                                                                 \
    static struct check_test entry_##name = {#name, test_##name, NULL};                            \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        struct check_test **at = &check_tests;                                                     \
        while (*at) {                                                                              \
            at = &(*at)->next;                                                                     \
        }                                                                                          \
        *at = &entry_##name;                                                                       \
    }                                                                                              \
    static void test_##name(void)

#define CHECK_FAIL(...)                                                                            \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, "\n  last error: %s\n", solo_error_text());                                \
        exit(1);                                                                                   \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            CHECK_FAIL("%s does not hold", #condition);                                            \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        intmax_t check_a = (intmax_t)(a), check_b = (intmax_t)(b);                                 \
        if (check_a != check_b) {                                                                  \
            CHECK_FAIL("%s is %" PRIdMAX ", %s is %" PRIdMAX, #a, check_a, #b, check_b);           \
        }                                                                                          \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *check_a = (a), *check_b = (b);                                                 \
        if (strcmp(check_a, check_b) != 0) {                                                       \
            CHECK_FAIL("%s is \"%s\", not \"%s\"", #a, check_a, check_b);                          \
        }                                                                                          \
    } while (0)

#define CHECK_HAS(text, part)                                                                      \
    do {                                                                                           \
        const char *check_text = (text);                                                           \
        if (!strstr(check_text, part)) {                                                           \
            CHECK_FAIL("%s is \"%s\", without \"%s\"", #text, check_text, part);                   \
        }                                                                                          \
    } while (0)

#endif
