/* Every twin gives the bits of vec_scalar.c, at every length 0 to 67 and every misalignment. */
#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "kernels/cpu.h"
#include "kernels/half.h"
#include "kernels/outer.h"
#include "kernels/vec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define COUNT_MAX 68u
#define ROOM      (COUNT_MAX * 8 + 64)

/* Bytes that are to be equal, with a margin on both sides that nobody may touch. */
struct pair {
    uint8_t truth[ROOM + 16], twin[ROOM + 16];
};

static struct rng rng = {20261130};

/* Bit patterns that find what ordinary values do not. */
static uint32_t nasty_bits(void)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000, 0x3f800000, 0xbf800000,
        0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001,
        0x3f808000, 0x3f818000, 0x3f807fff, 0x7f7f7fff, 0x7f7f8000, 0x477fe000, 0x477ff000,
        0x477fefff, 0x387fc000, 0x33000000, 0x33000001, 0x32ffffff, 0x38800000, 0x387fe000,
    };
    uint64_t draw = rng_next(&rng);
    if (draw % 3 == 0) {
        return special[(draw >> 8) % (sizeof special / sizeof *special)];
    }
    return (uint32_t)(draw >> 32);
}

static float ordinary(void) /* about N(0, 1) by the sum of uniforms */
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += (float)(rng_next(&rng) >> 40) * 0x1p-24f;
    }
    return sum - 6.0f;
}

enum values { ANY_BITS, FLOAT_BITS, ORDINARY, DOUBLE_BITS };

static void fill(uint8_t *at, size_t count, size_t size, enum values values)
{
    for (size_t i = 0; i < count; i++, at += size) {
        uint32_t words[2] = {(uint32_t)rng_next(&rng), nasty_bits()};
        float value = ordinary();
        double wide;
        switch (values) {
        case ANY_BITS:
            memcpy(at, words, size);
            break;
        case FLOAT_BITS:
            memcpy(at, &words[1], size);
            break;
        case ORDINARY:
            memcpy(at, &value, size);
            break;
        case DOUBLE_BITS: /* half of them near the halves of fp32 */
            memcpy(&wide, words, sizeof wide);
            if (words[0] & 1) {
                wide = (double)f32_from_bits(words[1]) * (1.0 + 0x1p-24);
            }
            memcpy(at, &wide, size);
        }
    }
}

/* Equal bits, or a NaN where the other has one: which of two payloads a sum keeps is free. */
static void check_same(const struct pair *pair, const char *what, size_t float_size)
{
    if (memcmp(pair->truth, pair->twin, sizeof pair->truth) == 0) {
        return;
    }
    for (size_t i = 0; i < sizeof pair->truth; i++) {
        if (pair->truth[i] == pair->twin[i]) {
            continue;
        }
        bool both_nan = false;
        for (size_t back = 0; float_size && back < float_size && back <= i; back++) {
            const uint8_t *a = pair->truth + i - back, *b = pair->twin + i - back;
            float x, y;
            double dx, dy;
            memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
            memcpy(&dx, a, sizeof dx), memcpy(&dy, b, sizeof dy);
            both_nan |= float_size == 4 ? x != x && y != y : dx != dx && dy != dy;
        }
        if (!both_nan) {
            CHECK_FAIL("%s: byte %zu is %02x, the truth is %02x", what, i, pair->twin[i],
                       pair->truth[i]);
        }
    }
}

/* What one comparison draws on: up to four inputs and two outputs at chosen offsets. */
struct trial {
    const struct vec *vec;
    size_t count, shift;
    uint8_t in[4][ROOM + 16];
    struct pair out[2];
    const char *what;
};

static void *at(struct trial *trial, uint8_t *base, unsigned which)
{
    return base + 8 + (trial->shift * (which + 1)) % 8;
}

#define IN(which)    at(trial, trial->in[which], which)
#define TRUTH(which) at(trial, trial->out[which].truth, which)
#define TWIN(which)  at(trial, trial->out[which].twin, which)

static void begin(struct trial *trial, const char *what)
{
    trial->what = what;
    for (unsigned i = 0; i < 2; i++) {
        fill(trial->out[i].truth, ROOM / 4, 4, ORDINARY); /* in-out arrays; and the margin */
        memcpy(trial->out[i].twin, trial->out[i].truth, sizeof trial->out[i].truth);
    }
}

static void end(struct trial *trial, size_t float_size)
{
    char what[96];
    snprintf(what, sizeof what, "%s %s, %zu elements, shift %zu", trial->vec->name, trial->what,
             trial->count, trial->shift);
    check_same(&trial->out[0], what, float_size);
    check_same(&trial->out[1], what, float_size);
}

#define COMPARE(name, float_size, ...)                                                             \
    do {                                                                                           \
        begin(trial, #name);                                                                       \
        const struct vec *vec = &vec_scalar;                                                       \
        void *out = TRUTH(0), *out2 = TRUTH(1);                                                    \
        vec->name(__VA_ARGS__, trial->count);                                                      \
        vec = trial->vec;                                                                          \
        out = TWIN(0), out2 = TWIN(1);                                                             \
        vec->name(__VA_ARGS__, trial->count);                                                      \
        (void)out2;                                                                                \
        end(trial, float_size);                                                                    \
    } while (0)

static void fill_inputs(struct trial *trial, size_t size, enum values values)
{
    for (unsigned i = 0; i < 4; i++) {
        fill(IN(i), COUNT_MAX, size, values);
    }
}

static void compare_conversions(struct trial *trial)
{
    fill_inputs(trial, 2, FLOAT_BITS);
    COMPARE(f32_of_f16, 0, out, IN(0));
    COMPARE(f32_of_bf16, 0, out, IN(0));
    COMPARE(axpy_f16, 4, out, IN(0), 0.3f);
    COMPARE(axpy_bf16, 4, out, IN(0), 0.3f);
    fill_inputs(trial, 4, FLOAT_BITS);
    COMPARE(f16_of_f32, 0, out, IN(0));
    COMPARE(bf16_of_f32, 0, out, IN(0));
    COMPARE(f64_of_f32, 0, out, IN(0));
    fill_inputs(trial, 8, DOUBLE_BITS);
    COMPARE(f32_of_f64, 0, out, IN(0));
}

static void compare_arithmetic(struct trial *trial)
{
    fill_inputs(trial, 4, FLOAT_BITS);
    COMPARE(add_f32, 4, out, IN(0), IN(1));
    COMPARE(min_f32, 0, out, IN(0), IN(1));
    COMPARE(max_f32, 0, out, IN(0), IN(1));
    COMPARE(scale_f32, 4, out, IN(0), 0.3f);
    COMPARE(axpy_f32, 4, out, IN(0), 0.3f);
    COMPARE(delta, 4, out, IN(0), IN(1), IN(2));
    COMPARE(delta, 4, out, IN(0), IN(1), NULL);
    fill_inputs(trial, 8, DOUBLE_BITS);
    COMPARE(add_f64, 8, out, IN(0), IN(1));
    COMPARE(min_f64, 0, out, IN(0), IN(1));
    COMPARE(max_f64, 0, out, IN(0), IN(1));
    fill_inputs(trial, 8, ANY_BITS);
    COMPARE(max_i64, 0, out, IN(0), IN(1));
}

static void compare_codes(struct trial *trial, enum values values)
{
    fill_inputs(trial, 4, values);
    COMPARE(encode_bf16, 4, out, out2, IN(0));
    COMPARE(encode_bf16, 4, out, NULL, IN(0));
    CHECK_EQ(vec_scalar.encode_bf16(TRUTH(0), NULL, IN(0), trial->count),
             trial->vec->encode_bf16(TWIN(0), NULL, IN(0), trial->count));
    CHECK_EQ(vec_scalar.absmax_bits(IN(0), trial->count),
             trial->vec->absmax_bits(IN(0), trial->count));
    COMPARE(encode_int8, 4, out, out2, IN(0), 0.03f, 1.0f / 0.03f);
    COMPARE(encode_int8, 4, out, NULL, IN(0), 0.5f, 2.0f); /* ties */
    COMPARE(decode_int8, 4, out, IN(0), 0.03f);
    COMPARE(axpy_int8, 4, out, IN(0), 0.03f);
    COMPARE(outer_plain, 4, out, IN(0), 0.7f);
    struct vec_outer step = {0.9f, 1.1f, 0.7f, 1.3f, 0.8f};
    COMPARE(outer_momentum, 4, out, out2, IN(0), &step);
}

static void compare_all(const struct vec *vec)
{
    static struct trial trial_room;
    struct trial *trial = &trial_room;
    trial->vec = vec;
    for (trial->count = 0; trial->count < COUNT_MAX; trial->count++) {
        for (trial->shift = 0; trial->shift < 8; trial->shift++) {
            compare_conversions(trial);
            compare_arithmetic(trial);
            compare_codes(trial, FLOAT_BITS);
            compare_codes(trial, ORDINARY);
        }
    }
}

TEST(each_instruction_set_gives_the_bits_of_the_scalar_truth)
{
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        if (vec) {
            fprintf(stderr, "  %s\n", vec->name);
            compare_all(vec);
        }
    }
}

/* 1 + 2^-12 squared is 1 + 2^-11 + 2^-24, which fp32 rounds to 1 + 2^-11; fused with the
 * addition of -(1 + 2^-11) it would leave 2^-24. */
TEST(no_multiply_is_fused_with_an_add)
{
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        if (!vec) {
            continue;
        }
        float value[COUNT_MAX], sum[COUNT_MAX];
        for (size_t i = 0; i < COUNT_MAX; i++) {
            value[i] = 1.0f + 0x1p-12f;
            sum[i] = -(1.0f + 0x1p-11f);
        }
        vec->axpy_f32(sum, value, 1.0f + 0x1p-12f, COUNT_MAX);
        for (size_t i = 0; i < COUNT_MAX; i++) {
            CHECK(sum[i] == 0.0f);
        }
    }
}

/* Without NaN: two of them give one with either's payload. */
TEST(sums_of_two_halves_are_rounded_once_and_alike)
{
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        for (uint32_t start = 0; vec && start < 65536; start += COUNT_MAX) {
            uint16_t a[COUNT_MAX], b[COUNT_MAX], truth[COUNT_MAX], twin[COUNT_MAX];
            for (uint32_t i = 0; i < COUNT_MAX; i++) {
                a[i] = (uint16_t)(start + i);
                b[i] = (uint16_t)rng_next(&rng);
                a[i] = f16_value(a[i]) != f16_value(a[i]) ? 0x7c00 : a[i];
                b[i] = f16_value(b[i]) != f16_value(b[i]) ? 0x0001 : b[i];
            }
            vec_scalar.add_f16(truth, a, b, COUNT_MAX);
            vec->add_f16(twin, a, b, COUNT_MAX);
            for (uint32_t i = 0; i < COUNT_MAX; i++) {
                CHECK(truth[i] == twin[i] || (truth[i] & 0x7fff) > 0x7c00);
                a[i] = bf16_value(a[i]) != bf16_value(a[i]) ? 0x7f80 : a[i];
                b[i] = bf16_value(b[i]) != bf16_value(b[i]) ? 0x0001 : b[i];
            }
            vec_scalar.add_bf16(truth, a, b, COUNT_MAX);
            vec->add_bf16(twin, a, b, COUNT_MAX);
            for (uint32_t i = 0; i < COUNT_MAX; i++) {
                CHECK(truth[i] == twin[i] || (truth[i] & 0x7fff) > 0x7f80);
            }
        }
    }
}

TEST(an_output_may_be_an_input)
{
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        if (!vec) {
            continue;
        }
        float a[COUNT_MAX], b[COUNT_MAX], sum[COUNT_MAX];
        fill((uint8_t *)a, COUNT_MAX, 4, ORDINARY);
        fill((uint8_t *)b, COUNT_MAX, 4, ORDINARY);
        vec->add_f32(sum, a, b, COUNT_MAX);
        vec->add_f32(a, a, b, COUNT_MAX);
        CHECK(memcmp(a, sum, sizeof a) == 0);
        vec->add_f32(b, b, b, COUNT_MAX);
        vec->delta(sum, a, b, NULL, COUNT_MAX);
        vec->delta(b, a, b, NULL, COUNT_MAX);
        CHECK(memcmp(b, sum, sizeof b) == 0);
    }
}

TEST(a_copy_past_the_caches_copies_every_byte)
{
    static uint8_t in[700], out[800];
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        for (size_t size = 0; vec && size < 600; size += 7) {
            fill(in, sizeof in / 4, 4, ANY_BITS);
            memset(out, 0xa5, sizeof out);
            size_t to = size % 67, from = size % 61;
            vec->copy_stream(out + 1 + to, in + from, size);
            CHECK(memcmp(out + 1 + to, in + from, size) == 0);
            CHECK_EQ(out[to], 0xa5);
            CHECK_EQ(out[1 + to + size], 0xa5);
        }
    }
}

#define PASS_COUNT 64u

/* Where a pass writes, and its digests' lanes. */
struct passed {
    _Alignas(64) float next[PASS_COUNT], next_momentum[PASS_COUNT];
    float mean[PASS_COUNT];
    uint64_t mean_lanes[8], next_lanes[8], momentum_lanes[8];
    uint32_t most;
};

static void take_pass(const struct vec *vec, const struct vec_pass *wanted, size_t count,
                      struct passed *out)
{
    memset(out, 0x5a, sizeof *out);
    struct vec_pass pass = *wanted;
    pass.next = out->next;
    pass.next_momentum = pass.momentum ? out->next_momentum : NULL;
    pass.mean = pass.local ? out->mean : NULL;
    pass.mean_lanes = out->mean_lanes;
    pass.next_lanes = out->next_lanes;
    pass.momentum_lanes = out->momentum_lanes;
    out->most = vec->merge_pass(&pass, count);
}

/* The same by the kernels of one step each. */
static void take_steps(const struct vec_pass *pass, size_t count, struct passed *out)
{
    const struct vec *vec = &vec_scalar;
    float mean[PASS_COUNT] = {0}, own[PASS_COUNT];
    memset(out, 0x5a, sizeof *out);
    if (pass->local) {
        vec->delta(own, pass->anchor, pass->local, NULL, count);
        vec->axpy_f32(mean, pass->delta, pass->other, count); /* in the other order */
        vec->axpy_f32(mean, own, pass->own, count);
        memcpy(out->mean, mean, 4 * count);
    } else {
        memcpy(mean, pass->delta, 4 * count);
    }
    out->most = vec->absmax_bits(mean, count);
    memcpy(out->next, pass->anchor, 4 * count);
    if (pass->momentum) {
        memcpy(out->next_momentum, pass->momentum, 4 * count);
    }
    outer_step(pass->outer, out->next, pass->momentum ? out->next_momentum : NULL, mean, count);
    vec->digest_stripes(out->mean_lanes, (const uint8_t *)mean, count / 16);
    vec->digest_stripes(out->next_lanes, (const uint8_t *)out->next, count / 16);
    if (pass->momentum) {
        vec->digest_stripes(out->momentum_lanes, (const uint8_t *)out->next_momentum, count / 16);
    }
}

TEST(one_pass_gives_the_bits_of_its_steps)
{
    static float in[4][PASS_COUNT + 1]; /* inputs begin anywhere */
    static struct passed truth, twin;
    struct vec_outer average = outer_average(), moves = outer_nesterov(0.7f, 0.9f);
    for (unsigned trial = 0; trial < 400; trial++) {
        for (unsigned i = 0; i < 4; i++) {
            fill((uint8_t *)in[i], PASS_COUNT + 1, 4, ORDINARY);
            in[i][trial % PASS_COUNT] = i < trial % 5 ? -0.0f : in[i][0]; /* sums of zeros, too */
        }
        const float *at = in[1] + trial % 2;
        struct vec_pass pass = {
            .delta = in[0] + trial / 2 % 2, .own = 0.25f, .other = 0.75f, .anchor = at};
        pass.local = trial & 4 ? in[2] + trial / 8 % 2 : NULL;
        pass.momentum = trial & 16 ? in[3] : NULL;
        pass.outer = pass.momentum ? &moves : &average;
        size_t count = 16 * (trial % (PASS_COUNT / 16 + 1));
        take_steps(&pass, count, &truth);
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
            const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
            if (vec) {
                take_pass(vec, &pass, count, &twin);
                CHECK(memcmp(&truth, &twin, sizeof twin) == 0);
            }
        }
    }
}

TEST(a_delta_with_its_largest_value_is_a_delta)
{
    static float anchor[COUNT_MAX], local[COUNT_MAX + 1], truth[COUNT_MAX];
    static uint8_t out[4 * COUNT_MAX + 80];
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const struct vec *vec = cpu_vec_of((enum cpu_isa)isa);
        for (size_t count = 0; vec && count < COUNT_MAX; count++) {
            fill((uint8_t *)anchor, COUNT_MAX, 4, ORDINARY);
            fill((uint8_t *)local, COUNT_MAX, 4, ORDINARY);
            size_t to = count * 5 % 67;
            memset(out, 0xa5, sizeof out);
            vec_scalar.delta(truth, anchor, local + 1, NULL, count);
            uint32_t most =
                vec->delta_most((float *)(void *)(out + 1 + to), anchor, local + 1, count);
            CHECK_EQ(most, vec_scalar.absmax_bits(truth, count));
            CHECK(memcmp(out + 1 + to, truth, 4 * count) == 0);
            CHECK_EQ(out[to], 0xa5);
            CHECK_EQ(out[1 + to + 4 * count], 0xa5);
        }
    }
}

TEST(half_floats_round_to_nearest_even)
{
    CHECK_EQ(f16_of(65519.0f), 0x7bff);
    CHECK_EQ(f16_of(65520.0f), 0x7c00);
    CHECK_EQ(f16_of(-1.0f), 0xbc00);
    CHECK_EQ(f16_of(0x1p-24f), 0x0001);
    CHECK_EQ(f16_of(0x1p-25f), 0x0000);
    CHECK_EQ(f16_of(0x1.8p-24f), 0x0002);
    CHECK_EQ(f16_of(1.0f + 0x1p-11f), 0x3c00);
    CHECK_EQ(f16_of(1.0f + 0x1.8p-10f), 0x3c02);
    CHECK_EQ(bf16_rounded(1.0f + 0x1p-8f), 0x3f800000);
    CHECK_EQ(bf16_rounded(1.0f + 0x1.8p-7f), 0x3f820000);
    CHECK_EQ(bf16_rounded(FLT_MAX), 0x7f800000);
    CHECK_EQ(bf16_rounded(f32_from_bits(0x7f800001)), 0x7fc00000);
    for (uint32_t code = 0; code < 65536; code++) {
        float value = f16_value((uint16_t)code);
        uint32_t quiet = value != value ? 0x0200 : 0;
        CHECK_EQ(f16_of(value), code | quiet);
        value = bf16_value((uint16_t)code);
        quiet = value != value ? 0x0040 : 0;
        CHECK_EQ(bf16_rounded(value) >> 16, code | quiet);
    }
}

#if defined(__x86_64__)
TEST(a_thread_that_flushed_denormals_is_put_right)
{
    volatile float small = 0x1p-126f;
    _mm_setcsr(_mm_getcsr() | 0x8040);
    CHECK(small * 0.5f == 0.0f);
    cpu_float_reset();
    CHECK(small * 0.5f != 0.0f);
}
#endif

TEST(the_name_in_use_is_one_of_the_four)
{
    CHECK_STR(solo_isa(), cpu_vec()->name);
    const struct vec *chosen = cpu_vec();
    cpu_force(&vec_scalar);
    CHECK_STR(solo_isa(), "scalar");
    cpu_force(chosen);
}
