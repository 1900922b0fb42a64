#include "base/rng.h"
#include "check.h"
#include "kernels/cpu.h"
#include "kernels/vec.h"
#include "solo_ckpt.h"

/* Bit by bit, straight from the definition. */
static uint32_t plain(const uint8_t *bytes, size_t size)
{
    uint32_t value = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        value ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
        }
    }
    return ~value;
}

static uint8_t bytes[1600];

static void fill(void)
{
    struct rng rng = {5};
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)rng_next(&rng);
    }
}

TEST(the_check_value_of_the_standard)
{
    CHECK(solo_crc32(0, "123456789", 9) == 0xcbf43926u);
}

TEST(every_length_and_misalignment_equals_the_definition_on_each_instruction_set)
{
    fill();
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        for (size_t size = 0; vec && size < 1500; size += size < 70 ? 1 : 37) {
            for (size_t start = 0; start < 64; start += size < 70 ? 1 : 13) {
                CHECK(~vec->crc32(UINT32_MAX, bytes + start, size) == plain(bytes + start, size));
            }
        }
    }
}

TEST(blocks_can_be_taken_in_turn_or_joined)
{
    fill();
    uint32_t whole = solo_crc32(0, bytes, 1500);
    for (size_t cut = 0; cut <= 1500; cut += 125) {
        uint32_t first = solo_crc32(0, bytes, cut), second = solo_crc32(0, bytes + cut, 1500 - cut);
        CHECK(solo_crc32(first, bytes + cut, 1500 - cut) == whole);
        CHECK(solo_crc32_join(first, second, 1500 - cut) == whole);
    }
}
