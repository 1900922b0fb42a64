#include "check.h"
#include "solo_ckpt.h"

static enum solo_ckpt_kind kind_of(const char *bytes, size_t size, uint64_t file_bytes)
{
    return solo_ckpt_sniff(bytes, size, file_bytes);
}
#define KIND(text) kind_of(text, sizeof(text) - 1, sizeof(text) - 1)

TEST(the_first_bytes_decide_what_a_file_is)
{
    CHECK_EQ(KIND(""), SOLO_CKPT_EMPTY);
    CHECK_EQ(KIND("\0\0\0\0\0\0\0\0\0\0"), SOLO_CKPT_ZEROS);
    CHECK_EQ(KIND("PK\3\4rest"), SOLO_CKPT_TORCH_ZIP);
    CHECK_EQ(KIND("\x80\2}q\1."), SOLO_CKPT_PICKLE);
    CHECK_EQ(KIND("GGUF\3"), SOLO_CKPT_GGUF);
    CHECK_EQ(KIND(" \n<HTML>"), SOLO_CKPT_HTML);
    CHECK_EQ(KIND(" {\"a\": 1}"), SOLO_CKPT_JSON);
    CHECK_EQ(KIND("plain text"), SOLO_CKPT_UNKNOWN);
}

/* The length 640 begins like a pickle of protocol 2. */
TEST(a_safetensors_length_that_looks_like_a_pickle_is_no_pickle)
{
    CHECK_EQ(kind_of("\x80\2\0\0\0\0\0\0{\"a\"", 12, 10000), SOLO_CKPT_SAFETENSORS);
}

TEST(a_safetensors_file_cut_inside_its_header_is_still_one)
{
    CHECK_EQ(kind_of("\xff\xff\0\0\0\0\0\0{\"a\"", 12, 12), SOLO_CKPT_SAFETENSORS);
    CHECK_EQ(kind_of("\xff\xff\xff\xff\xff\0\0\0{\"a\"", 12, 12), SOLO_CKPT_UNKNOWN);
}

TEST(every_kind_has_a_name)
{
    for (int kind = 0; kind < SOLO_CKPT_KIND_COUNT; kind++) {
        CHECK(solo_ckpt_kind_name((enum solo_ckpt_kind)kind) != NULL);
    }
    CHECK_STR(solo_ckpt_kind_name((enum solo_ckpt_kind)999), "unknown");
}
