/* Each reduction against one element at a time in the order of the ranks. */
#include "kernels/reduce.h"

#include "base/rng.h"
#include "check.h"
#include "kernels/convert.h"
#include "kernels/cpu.h"
#include "kernels/vec.h"

#define COUNT_MAX   3000u /* several blocks */
#define SOURCES_MAX 5u

static uint8_t room[SOURCES_MAX][COUNT_MAX * 16 + 8];
static uint8_t result[COUNT_MAX * 16 + 8], other[COUNT_MAX * 16 + 8], sum[COUNT_MAX * 16 + 8];
static const void *sources[SOURCES_MAX];

/* Small whole numbers, exact in every dtype, so that floats have one right answer; and for
 * integers any bits. */
static void fill(enum solo_dtype dtype, size_t shift)
{
    struct rng rng = {(uint64_t)dtype + 1};
    size_t size = solo_dtype_bytes(dtype);
    for (unsigned source = 0; source < SOURCES_MAX; source++) {
        uint8_t *at = room[source] + shift;
        sources[source] = at;
        enum solo_dtype real = dtype == SOLO_C64    ? SOLO_F32
                               : dtype == SOLO_C128 ? SOLO_F64
                               : dtype == SOLO_C32  ? SOLO_F16
                                                    : dtype;
        size_t real_size = solo_dtype_bytes(real);
        for (size_t i = 0; i < COUNT_MAX * size / real_size; i++) {
            float value = (float)rng_below(&rng, 4) - 1.0f;
            uint64_t bits = rng_next(&rng);
            if (convert_is_float(real)) {
                value = real == SOLO_F8E8M0 ? 1.0f + (float)(bits & 1) : value;
                convert_from_f32(at + i * real_size, &value, real, 1);
            } else {
                memcpy(at + i * real_size, &bits, real_size);
                at[i * real_size] &= dtype == SOLO_BOOL ? 3 : 255; /* 0 is frequent */
            }
        }
    }
}

static double real_result(const struct reduce *reduce, const double *values, unsigned n)
{
    double so_far = values[0] * (reduce->op == REDUCE_PREMUL ? reduce->factor : 1.0);
    for (unsigned i = 1; i < n; i++) {
        double next = values[i];
        so_far = reduce->op == REDUCE_PRODUCT  ? so_far * next
                 : reduce->op == REDUCE_MIN    ? (next < so_far ? next : so_far)
                 : reduce->op == REDUCE_MAX    ? (next > so_far ? next : so_far)
                 : reduce->op == REDUCE_PREMUL ? so_far + next * reduce->factor
                                               : so_far + next;
    }
    if (reduce->op == REDUCE_AVG) { /* times 1/divisor, in the accumulator's precision */
        double share = 1.0 / reduce->divisor;
        return reduce->dtype == SOLO_F64 ? so_far * share : (double)((float)so_far * (float)share);
    }
    return so_far;
}

static double real_at(enum solo_dtype dtype, const void *at, size_t index)
{
    double wide;
    float narrow;
    const uint8_t *here = (const uint8_t *)at + index * solo_dtype_bytes(dtype);
    if (dtype == SOLO_F64) {
        memcpy(&wide, here, sizeof wide);
        return wide;
    }
    convert_to_f32(&narrow, here, dtype, 1);
    return (double)narrow;
}

static void check_real(const struct reduce *reduce, unsigned n, const void *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double values[SOURCES_MAX];
        for (unsigned source = 0; source < n; source++) {
            values[source] = real_at(reduce->dtype, sources[source], i);
        }
        double wanted = real_result(reduce, values, n), rounded = wanted;
        if (reduce->dtype != SOLO_F64) {
            uint8_t code[8];
            float narrow = (float)wanted;
            convert_from_f32(code, &narrow, reduce->dtype, 1);
            rounded = real_at(reduce->dtype, code, 0);
        }
        double got = real_at(reduce->dtype, out, i);
        if (got != rounded) {
            CHECK_FAIL("%s of %u %s: %g at %zu, not %g", reduce_op_name(reduce->op), n,
                       solo_dtype_name(reduce->dtype), got, i, rounded);
        }
    }
}

static uint64_t whole_step(enum reduce_op op, bool is_signed, uint64_t a, uint64_t b)
{
    bool less = is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case REDUCE_PRODUCT:
        return a * b;
    case REDUCE_MIN:
        return less ? a : b;
    case REDUCE_MAX:
        return less ? b : a;
    case REDUCE_BAND:
        return a & b;
    case REDUCE_BOR:
        return a | b;
    case REDUCE_BXOR:
        return a ^ b;
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_PREMUL:
    case REDUCE_OP_COUNT:
        break;
    }
    return a + b;
}

static void check_whole(const struct reduce *reduce, unsigned n, const void *out, size_t count)
{
    enum solo_dtype dtype = reduce->dtype;
    size_t size = solo_dtype_bytes(dtype);
    bool is_signed =
        dtype == SOLO_I8 || dtype == SOLO_I16 || dtype == SOLO_I32 || dtype == SOLO_I64;
    for (size_t i = 0; i < count; i++) {
        int64_t so_far, next, wanted = 0;
        convert_to_i64(&so_far, (const uint8_t *)sources[0] + i * size, dtype, 1);
        for (unsigned source = 1; source < n; source++) {
            convert_to_i64(&next, (const uint8_t *)sources[source] + i * size, dtype, 1);
            so_far = (int64_t)whole_step(reduce->op, is_signed, (uint64_t)so_far, (uint64_t)next);
        }
        if (reduce->op == REDUCE_AVG) {
            so_far = is_signed ? so_far / (int64_t)reduce->divisor
                               : (int64_t)((uint64_t)so_far / reduce->divisor);
        }
        convert_from_i64(&wanted, &so_far, dtype, 1);
        if (memcmp(&wanted, (const uint8_t *)out + i * size, size) != 0) {
            CHECK_FAIL("%s of %u %s: element %zu is wrong", reduce_op_name(reduce->op), n,
                       solo_dtype_name(dtype), i);
        }
    }
}

static void check_steps(const struct reduce *reduce, unsigned n, size_t count, const void *wanted)
{
    size_t size = count * solo_dtype_bytes(reduce->dtype);
    reduce_start(reduce, sum + 1, sources[0], count);
    for (unsigned source = 1; source < n; source++) {
        reduce_add(reduce, sum + 1, sources[source], count);
    }
    reduce_finish(reduce, other, sum + 1, count);
    CHECK(memcmp(other, wanted, size) == 0);
    reduce_finish(reduce, sum + 1, sum + 1, count);
    CHECK(memcmp(sum + 1, wanted, size) == 0);
}

static void check_out_is_a_source(const struct reduce *reduce, unsigned n, size_t count,
                                  const void *wanted)
{
    size_t size = count * solo_dtype_bytes(reduce->dtype);
    for (unsigned source = 0; source < n; source++) {
        uint8_t *out = room[source] + ((const uint8_t *)sources[source] - room[source]);
        memcpy(other, out, size);
        reduce_n(reduce, out, sources, n, count, source % 2 ? REDUCE_STREAMED : REDUCE_CACHED);
        CHECK(memcmp(out, wanted, size) == 0);
        memcpy(out, other, size);
    }
}

static void check_one(const struct reduce *reduce, unsigned n, size_t count)
{
    uint8_t *out = result + 3;
    size_t size = count * solo_dtype_bytes(reduce->dtype);
    memset(result, 0xa5, sizeof result);
    reduce_n(reduce, out, sources, n, count, REDUCE_CACHED);
    CHECK_EQ(out[size], 0xa5);
    if (convert_is_float(reduce->dtype)) {
        check_real(reduce, n, out, count);
    } else if (convert_is_integer(reduce->dtype)) {
        check_whole(reduce, n, out, count);
    }
    reduce_n(reduce, other, sources, n, count, REDUCE_STREAMED);
    CHECK(memcmp(other, out, size) == 0);
    check_steps(reduce, n, count, out);
    check_out_is_a_source(reduce, n, count, out);
}

static void check_dtype(enum solo_dtype dtype, size_t count, size_t shift)
{
    fill(dtype, shift);
    for (int op = 0; op < REDUCE_OP_COUNT; op++) {
        if (reduce_check((enum reduce_op)op, dtype) < 0) {
            continue;
        }
        for (unsigned n = 1; n <= SOURCES_MAX; n++) {
            struct reduce reduce = {(enum reduce_op)op, dtype, n, 0.5};
            check_one(&reduce, n, count);
        }
    }
}

TEST(every_operation_on_every_dtype_is_what_one_element_at_a_time_gives)
{
    static const size_t counts[] = {0, 1, 15, 67, 257, COUNT_MAX};
    const struct vec *chosen = cpu_vec();
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_vec_of((enum cpu_isa)isa)) {
            continue;
        }
        cpu_force(cpu_vec_of((enum cpu_isa)isa));
        for (int dtype = 0; dtype < SOLO_DTYPE_COUNT; dtype++) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                check_dtype((enum solo_dtype)dtype, counts[i], i % 5);
            }
        }
    }
    cpu_force(chosen);
}

TEST(complex_numbers_are_multiplied_as_such)
{
    float a[] = {1, 2, 3, -1}, b[] = {3, -1, 0, 2}, out[4];
    const void *two[] = {a, b};
    struct reduce reduce = {.op = REDUCE_PRODUCT, .dtype = SOLO_C64};
    reduce_n(&reduce, out, two, 2, 2, REDUCE_CACHED);
    CHECK(out[0] == 5 && out[1] == 5 && out[2] == 2 && out[3] == 6);
    reduce = (struct reduce){.op = REDUCE_AVG, .dtype = SOLO_C64, .divisor = 2};
    reduce_n(&reduce, out, two, 2, 2, REDUCE_CACHED);
    CHECK(out[0] == 2 && out[1] == 0.5f && out[2] == 1.5f && out[3] == 0.5f);
}

TEST(an_average_of_large_halves_does_not_overflow)
{
    uint16_t large[] = {0x7bff}, out; /* 65504 */
    const void *four[] = {large, large, large, large};
    struct reduce reduce = {.op = REDUCE_AVG, .dtype = SOLO_F16, .divisor = 4};
    reduce_n(&reduce, &out, four, 4, 1, REDUCE_CACHED);
    CHECK_EQ(out, 0x7bff);
    int8_t small[] = {-100}, mean; /* nor of bytes */
    const void *three[] = {small, small, small};
    reduce = (struct reduce){.op = REDUCE_AVG, .dtype = SOLO_I8, .divisor = 3};
    reduce_n(&reduce, &mean, three, 3, 1, REDUCE_CACHED);
    CHECK_EQ(mean, -100);
}

/* 1 + eight times 2^-8: bf16 would lose each of them alone. */
TEST(halves_are_rounded_once)
{
    uint16_t one = 0x3f80, tiny = 0x3b80, out;
    const void *nine[] = {&one, &tiny, &tiny, &tiny, &tiny, &tiny, &tiny, &tiny, &tiny};
    struct reduce reduce = {.op = REDUCE_SUM, .dtype = SOLO_BF16};
    reduce_n(&reduce, &out, nine, 9, 1, REDUCE_CACHED);
    CHECK_EQ(out, 0x3f84); /* 1 + 2^-5 */
}

TEST(a_bool_stays_a_bool)
{
    uint8_t a[] = {0, 1, 2, 255}, b[] = {0, 0, 1, 255}, out[4];
    const void *two[] = {a, b};
    struct reduce reduce = {.op = REDUCE_SUM, .dtype = SOLO_BOOL};
    reduce_n(&reduce, out, two, 2, 4, REDUCE_CACHED);
    CHECK(memcmp(out, "\0\1\1\1", 4) == 0);
    reduce.op = REDUCE_BXOR;
    reduce_n(&reduce, out, two, 2, 4, REDUCE_CACHED);
    CHECK(memcmp(out, "\0\1\0\0", 4) == 0);
}

TEST(a_nan_wins_a_maximum_and_a_minimum)
{
    float nan_bits = 0, one[] = {1}, out;
    memcpy(&nan_bits, &(uint32_t){0x7fc00000}, 4);
    const void *first[] = {&nan_bits, one}, *second[] = {one, &nan_bits};
    struct reduce reduce = {.op = REDUCE_MAX, .dtype = SOLO_F32};
    reduce_n(&reduce, &out, first, 2, 1, REDUCE_CACHED);
    CHECK(out != out);
    reduce.op = REDUCE_MIN;
    reduce_n(&reduce, &out, second, 2, 1, REDUCE_CACHED);
    CHECK(out != out);
}

TEST(what_has_no_meaning_is_an_error_that_names_it)
{
    CHECK_EQ(reduce_check(REDUCE_BAND, SOLO_F32), SOLO_ENOTSUP);
    CHECK_HAS(solo_error_text(), "BAND of float32");
    CHECK_EQ(reduce_check(REDUCE_MAX, SOLO_C64), SOLO_ENOTSUP);
    CHECK_EQ(reduce_check(REDUCE_AVG, SOLO_BOOL), SOLO_ENOTSUP);
    CHECK_EQ(reduce_check(REDUCE_PREMUL, SOLO_I32), SOLO_ENOTSUP);
    CHECK_EQ(reduce_check(REDUCE_SUM, SOLO_F8E8M0), SOLO_ENOTSUP);
    CHECK_EQ(reduce_check(REDUCE_SUM, SOLO_BYTES), SOLO_ENOTSUP);
    CHECK_EQ(reduce_check((enum reduce_op)99, SOLO_F32), SOLO_ENOTSUP);
    CHECK_EQ(reduce_check(REDUCE_SUM, (enum solo_dtype)99), SOLO_ENOTSUP);
}
