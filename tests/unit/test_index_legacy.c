#include <stdlib.h>

#include "base/err.h"
#include "check.h"
#include "solo_ckpt.h"

#define FILE_BYTES 400000u

static int read_at(void *context, uint64_t offset, void *bytes, size_t count)
{
    memcpy(bytes, (const char *)context + offset, count);
    return 0;
}

/* The first 256 KiB hold three whole pickles, whose values end with those bytes. */
TEST(nothing_of_a_first_look_is_left_when_the_second_would_be_too_large)
{
    static const char head[] = "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
                               "\x80\2M\xe9\3."
                               "\x80\2}K\1]K\2as."
                               "\x80\2X\xff\xff\x0f\0";
    char *file = calloc(1, FILE_BYTES);
    MUST(file);
    memcpy(file, head, sizeof head - 1);
    struct solo_ckpt_source source = {.context = file, .size = FILE_BYTES, .read = read_at};
    struct solo_ckpt_options options = {.size = sizeof options, .metadata_max = 300000};
    struct solo_ckpt *ckpt;
    CHECK_EQ(solo_ckpt_open(&source, &options, &ckpt), 0);
    struct solo_ckpt_fault fault;
    CHECK_EQ(solo_ckpt_fault_get(ckpt, 0, &fault), 0);
    CHECK_EQ(fault.code, SOLO_CKPT_LIMIT);
    CHECK(solo_ckpt_root(ckpt) == SOLO_CKPT_NONE);
    solo_ckpt_close(ckpt);
    free(file);
}
