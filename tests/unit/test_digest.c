#include "kernels/digest.h"

#include "base/rng.h"
#include "check.h"
#include "kernels/cpu.h"
#include "kernels/vec.h"

static uint8_t bytes[5000];

static void fill(void)
{
    struct rng rng = {3};
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)rng_next(&rng);
    }
}

/* Both ends of a wire must agree on these for ever: a change is a new wire version. */
TEST(gives_the_values_written_down_here)
{
    fill();
    CHECK_EQ(digest_chunk(0, NULL, 0), INTMAX_C(-7393885063776839367));
    CHECK_EQ(digest_chunk(0, bytes, 100), INTMAX_C(-8997155327481643643));
    CHECK_EQ(digest_chunk(7, bytes, sizeof bytes), INTMAX_C(51901618265079147));
}

TEST(is_the_same_on_every_instruction_set_at_every_length_and_alignment)
{
    fill();
    const struct vec *chosen = cpu_vec();
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        for (size_t size = 0; vec && size < 400; size++) {
            cpu_force(&vec_scalar);
            uint64_t truth = digest_chunk(size, bytes + size % 9, size);
            cpu_force(vec);
            CHECK_EQ(digest_chunk(size, bytes + size % 9, size), truth);
        }
    }
    cpu_force(chosen);
}

TEST(is_the_same_whole_and_in_parts)
{
    fill();
    for (size_t size = 0; size < 400; size++) {
        for (size_t part = DIGEST_PART_BYTES; part < 300; part += DIGEST_PART_BYTES) {
            struct digest digest;
            digest_begin(&digest, 9);
            for (size_t at = 0; at < size; at += part) {
                digest_feed(&digest, bytes + at, size - at < part ? size - at : part);
            }
            CHECK_EQ(digest_end(&digest), digest_chunk(9, bytes, size));
        }
    }
}

TEST(any_flipped_bit_and_any_moved_chunk_is_seen)
{
    fill();
    uint64_t before = digest_chunk(1, bytes, 300);
    for (size_t bit = 0; bit < 300 * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(digest_chunk(1, bytes, 300) != before);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK(digest_chunk(2, bytes, 300) != before);
    memset(bytes, 0, sizeof bytes);
    CHECK(digest_chunk(1, bytes, 64) != digest_chunk(1, bytes, 65));
    CHECK(digest_chunk(1, bytes, 64) != digest_chunk(1, bytes, 128));
}

/* Every output bit changes for about half of the input bits: 2,400 fair coins are within 5
 * standard errors of 1,200. */
TEST(a_flipped_bit_changes_half_of_the_hash)
{
    fill();
    uint64_t before = digest_chunk(1, bytes, 300);
    int changed[64] = {0};
    for (size_t bit = 0; bit < 2400; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        uint64_t difference = digest_chunk(1, bytes, 300) ^ before;
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        for (int out = 0; out < 64; out++) {
            changed[out] += difference >> out & 1;
        }
    }
    for (int out = 0; out < 64; out++) {
        CHECK(changed[out] > 1078 && changed[out] < 1322);
    }
}
