/* What holds for every codec: a delta, its way over an owner, and the step after a commit. */
#include "codec/codec.h"

#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "kernels/convert.h"
#include "kernels/cpu.h"

#define COUNT 2600u /* two blocks and a part; no multiple of anything */

static const char *const names[] = {"fp32", "bf16", "int8", "int4"};
#define CODECS (sizeof names / sizeof *names)
/* Half a step of the largest delta, about 0.05. */
static const float error_max[CODECS] = {1e-8f, 2e-4f, 3e-4f, 5e-3f};
static float anchor[COUNT], local[COUNT], residual[COUNT], left[COUNT], decoded[COUNT];
static uint8_t code[COUNT * 4 + 64], second[COUNT * 4 + 64];

static const struct codec *codec_of(size_t index)
{
    const struct codec *codec = NULL;
    CHECK_EQ(codec_find(names[index], &codec), 0);
    return codec;
}

static float ordinary(struct rng *rng) /* about N(0, 1) */
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += (float)(rng_next(rng) >> 40) * 0x1p-24f;
    }
    return sum - 6.0f;
}

static void fill(uint64_t seed)
{
    struct rng rng = {seed};
    for (size_t i = 0; i < COUNT; i++) {
        anchor[i] = ordinary(&rng);
        local[i] = anchor[i] - 0.01f * ordinary(&rng);
        residual[i] = 1e-4f * ordinary(&rng);
    }
}

/* `local` as three tensors of odd sizes and an empty one. */
static void cut(struct codec_piece pieces[4])
{
    size_t sizes[] = {1000, 0, 37, COUNT - 1037}, start = 0;
    for (int i = 0; i < 4; i++) {
        pieces[i] = (struct codec_piece){local + start, sizes[i], SOLO_F32};
        start += sizes[i];
    }
}

TEST(a_name_finds_its_codec_and_a_wrong_one_is_told_the_right_ones)
{
    const struct codec *codec = NULL;
    CHECK_EQ(codec_find(NULL, &codec), 0);
    CHECK_STR(codec_name(codec), "fp32");
    CHECK(codec == codec_exact() && !codec_has_residual(codec));
    CHECK_EQ(codec_find("int8", &codec), 0);
    CHECK(codec_has_residual(codec));
    CHECK_EQ(codec_find("int3", &codec), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), "int3");
    CHECK_HAS(solo_error_text(), "int8");
}

TEST(encoded_sizes_are_as_documented)
{
    CHECK_EQ(codec_bytes(codec_of(0), 1000), 4000);
    CHECK_EQ(codec_bytes(codec_of(1), 1000), 2000);
    CHECK_EQ(codec_bytes(codec_of(2), 1000), 1000 + 4 * 4);
    CHECK_EQ(codec_bytes(codec_of(2), 1024), 1024 + 4 * 4);
    CHECK_EQ(codec_bytes(codec_of(2), 1), 5);
    CHECK_EQ(codec_bytes(codec_of(2), 0), 0);
    CHECK_EQ(codec_bytes(codec_of(3), 1024), 512 + 8 * 4);
    CHECK_EQ(codec_bytes(codec_of(3), 131), 64 + 4 + 2 + 4);
}

TEST(what_is_decoded_and_what_is_left_is_the_whole_delta)
{
    fill(1);
    struct codec_piece pieces[4];
    cut(pieces);
    for (size_t k = 0; k < CODECS; k++) {
        size_t bad = 0;
        struct codec_delta delta = {anchor, pieces, residual, left, COUNT};
        CHECK_EQ(codec_encode(codec_of(k), &delta, code + 1, &bad), 0);
        CHECK_EQ(codec_check(codec_of(k), code + 1, codec_bytes(codec_of(k), COUNT), COUNT), 0);
        codec_decode(codec_of(k), decoded, code + 1, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            float whole = (anchor[i] - local[i]) + residual[i];
            CHECK(fabsf(decoded[i] - whole) <= error_max[k]);
            CHECK(left[i] == whole - decoded[i]);
        }
    }
}

TEST(the_local_tensors_may_be_of_any_float_dtype)
{
    enum solo_dtype dtypes[] = {SOLO_F16, SOLO_BF16, SOLO_F64, SOLO_F8E5M2};
    fill(2);
    for (size_t k = 0; k < 4; k++) {
        uint8_t narrow[COUNT * 8], again[COUNT * 8];
        convert_from_f32(narrow, local, dtypes[k], COUNT);
        struct codec_piece piece = {narrow, COUNT, dtypes[k]};
        struct codec_delta delta = {anchor, &piece, NULL, NULL, COUNT};
        size_t bad = 0;
        CHECK_EQ(codec_encode(codec_exact(), &delta, code, &bad), 0);
        codec_gather(decoded, &piece, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            float sent;
            memcpy(&sent, code + 4 * i, sizeof sent);
            CHECK(sent == anchor[i] - decoded[i]);
        }
        piece.data = again;
        codec_scatter(&piece, decoded, COUNT);
        CHECK(memcmp(narrow, again, COUNT * solo_dtype_bytes(dtypes[k])) == 0);
    }
}

TEST(without_local_tensors_the_values_themselves_are_encoded)
{
    fill(3);
    struct codec_delta delta = {.anchor = anchor, .count = COUNT};
    size_t bad = 0;
    CHECK_EQ(codec_encode(codec_exact(), &delta, code, &bad), 0);
    CHECK(memcmp(code, anchor, sizeof anchor) == 0);
}

TEST(a_value_that_is_not_finite_is_found_where_it_is)
{
    static const size_t places[] = {0, 255, 256, 1023, 1024, 2100, COUNT - 1};
    struct codec_piece pieces[4];
    for (size_t k = 0; k < CODECS; k++) {
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            fill(4);
            cut(pieces);
            local[places[i]] = i % 2 ? NAN : -INFINITY;
            local[COUNT - 1] = NAN; /* a later one does not matter */
            struct codec_delta delta = {anchor, pieces, NULL, left, COUNT};
            size_t bad = COUNT;
            CHECK_EQ(codec_encode(codec_of(k), &delta, code + 3, &bad), SOLO_ENONFINITE);
            CHECK_EQ(bad, places[i]);
        }
    }
}

static void encode_source(const struct codec *codec, uint64_t seed, uint8_t *out)
{
    fill(seed);
    struct codec_piece piece = {local, COUNT, SOLO_F32};
    struct codec_delta delta = {anchor, &piece, NULL, NULL, COUNT};
    size_t bad = 0;
    CHECK_EQ(codec_encode(codec, &delta, out, &bad), 0);
}

TEST(an_owner_sends_the_weighted_mean_of_who_contributed)
{
    static uint8_t from[3][COUNT * 4 + 64];
    static float each[3][COUNT];
    float weights[] = {0.25f, 0.0f, 0.75f, 1.0f};
    for (size_t k = 0; k < CODECS; k++) {
        const struct codec *codec = codec_of(k);
        for (unsigned i = 0; i < 3; i++) {
            encode_source(codec, 10 + i, from[i]);
            codec_decode(codec, each[i], from[i], COUNT);
        }
        memset(from[1], 0xff, sizeof from[1]); /* weight 0: not even looked at */
        const void *sources[] = {from[0], from[1], from[2], NULL};
        struct codec_mean mean = {sources, weights, 4, residual, left, COUNT};
        size_t bad = 0;
        CHECK_EQ(codec_reduce(codec, &mean, code, &bad), 0);
        codec_decode(codec, decoded, code, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            float sum = residual[i] + 0.25f * each[0][i] + 0.75f * each[2][i];
            CHECK(fabsf(decoded[i] + left[i] - sum) <= 1e-7f);
            CHECK(fabsf(decoded[i] - sum) <= error_max[k] + 1e-7f);
        }
    }
}

TEST(a_single_member_with_fp32_gets_its_own_delta_back)
{
    encode_source(codec_exact(), 5, code);
    const void *source = code;
    float weight = 1.0f;
    struct codec_mean mean = {&source, &weight, 1, NULL, NULL, COUNT};
    size_t bad = 0;
    CHECK_EQ(codec_reduce(codec_exact(), &mean, second, &bad), 0);
    CHECK(memcmp(code, second, codec_bytes(codec_exact(), COUNT)) == 0);
}

TEST(an_owners_sum_that_overflows_is_found)
{
    float huge[] = {1.0f, 3e38f, 3e38f};
    const void *sources[] = {huge, huge};
    float weights[] = {1.0f, 1.0f};
    struct codec_mean mean = {sources, weights, 2, NULL, NULL, 3};
    size_t bad = 0;
    CHECK_EQ(codec_reduce(codec_exact(), &mean, code, &bad), SOLO_ENONFINITE);
    CHECK_EQ(bad, 1);
}

TEST(bytes_of_the_wrong_size_or_with_a_nan_are_a_peers_fault)
{
    for (size_t k = 0; k < CODECS; k++) {
        const struct codec *codec = codec_of(k);
        size_t size = codec_bytes(codec, COUNT);
        encode_source(codec, 6, code);
        CHECK_EQ(codec_check(codec, code, size, COUNT), 0);
        CHECK_EQ(codec_check(codec, code, size - 1, COUNT), SOLO_EPEER);
        CHECK_HAS(solo_error_text(), names[k]);
        size_t scale = codec_bytes(codec, 1024); /* the first value of the second block */
        memset(code + scale, 0xff, 4);
        CHECK_EQ(codec_check(codec, code, size, COUNT), SOLO_EPEER);
        CHECK_HAS(solo_error_text(), "1024");
    }
}

TEST(after_a_commit_anchor_and_local_tensors_are_the_same)
{
    struct vec_outer steps[] = {outer_average(), outer_nesterov(0.7f, 0.9f)};
    static float momentum[COUNT], expected[COUNT];
    for (int s = 0; s < 2; s++) {
        for (size_t k = 0; k < CODECS; k++) {
            encode_source(codec_of(k), 7, code);
            struct codec_piece pieces[4];
            cut(pieces);
            memset(momentum, 0, sizeof momentum);
            codec_decode(codec_of(k), decoded, code, COUNT);
            for (size_t i = 0; i < COUNT; i++) {
                expected[i] = s ? anchor[i] - 0.7f * (decoded[i] + 0.9f * decoded[i])
                                : anchor[i] - decoded[i];
            }
            struct codec_step step = {code, &steps[s], anchor, s ? momentum : NULL, pieces, COUNT};
            codec_apply(codec_of(k), &step);
            CHECK(memcmp(anchor, expected, sizeof anchor) == 0);
            CHECK(memcmp(anchor, local, sizeof anchor) == 0);
            CHECK(!s || memcmp(momentum, decoded, sizeof momentum) == 0);
        }
    }
}

TEST(members_with_other_instruction_sets_hold_the_same_bits)
{
    static float truth[COUNT], momentum[COUNT];
    static uint8_t truth_code[COUNT * 4 + 64];
    struct vec_outer nesterov = outer_nesterov(0.7f, 0.9f);
    const struct vec *chosen = cpu_vec();
    for (size_t k = 0; k < CODECS; k++) {
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!cpu_vec_of((enum cpu_isa)isa)) {
                continue;
            }
            cpu_force(cpu_vec_of((enum cpu_isa)isa));
            encode_source(codec_of(k), 8, code);
            const void *sources[] = {code, code};
            float weights[] = {0.3f, 0.7f};
            struct codec_mean mean = {sources, weights, 2, residual, left, COUNT};
            size_t bad = 0;
            CHECK_EQ(codec_reduce(codec_of(k), &mean, second, &bad), 0);
            memcpy(momentum, residual, sizeof momentum);
            struct codec_step step = {second, &nesterov, anchor, momentum, NULL, COUNT};
            codec_apply(codec_of(k), &step);
            if (isa == CPU_SCALAR) {
                memcpy(truth, anchor, sizeof truth);
                memcpy(truth_code, second, sizeof truth_code);
            }
            CHECK(memcmp(truth, anchor, sizeof truth) == 0);
            CHECK(memcmp(truth_code, second, codec_bytes(codec_of(k), COUNT)) == 0);
        }
    }
    cpu_force(chosen);
}

/* Each round's error is in the next round's delta, so the sums differ by what is left alone. */
TEST(with_residuals_nothing_is_lost_over_the_rounds)
{
    static double sent[COUNT], wanted[COUNT];
    for (size_t k = 1; k < CODECS; k++) {
        memset(sent, 0, sizeof sent);
        memset(wanted, 0, sizeof wanted);
        memset(left, 0, sizeof left);
        for (uint64_t round = 0; round < 200; round++) {
            fill(100 + round);
            struct codec_piece piece = {local, COUNT, SOLO_F32};
            struct codec_delta delta = {anchor, &piece, left, left, COUNT};
            size_t bad = 0;
            CHECK_EQ(codec_encode(codec_of(k), &delta, code, &bad), 0);
            codec_decode(codec_of(k), decoded, code, COUNT);
            for (size_t i = 0; i < COUNT; i++) {
                sent[i] += (double)decoded[i];
                wanted[i] += (double)(anchor[i] - local[i]);
            }
        }
        for (size_t i = 0; i < COUNT; i++) {
            CHECK(fabs(sent[i] + (double)left[i] - wanted[i]) < 2e-6); /* fp32's rounding */
            CHECK(fabs(sent[i] - wanted[i]) <= (double)error_max[k]);  /* one round's at most */
        }
    }
}
