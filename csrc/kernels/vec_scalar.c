/* The truth: plain loops to check against the formula. */
#include "kernels/crc32.h"
#include "kernels/half.h"
#include "kernels/vec.h"

/* Arrays may begin at any byte. */
typedef float f32 __attribute__((aligned(1)));
typedef double f64 __attribute__((aligned(1)));
typedef uint16_t u16 __attribute__((aligned(1)));
typedef int64_t i64 __attribute__((aligned(1)));

static void f32_of_f16(f32 *out, const u16 *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = f16_value(in[i]);
    }
}

static void f32_of_bf16(f32 *out, const u16 *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = bf16_value(in[i]);
    }
}

static void f32_of_f64(f32 *out, const f64 *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)in[i];
    }
}

static void f16_of_f32(u16 *out, const f32 *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = f16_of(in[i]);
    }
}

static void bf16_of_f32(u16 *out, const f32 *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint16_t)(bf16_rounded(in[i]) >> 16);
    }
}

static void f64_of_f32(f64 *out, const f32 *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (double)in[i];
    }
}

/* out[i] = expression of x and y; "x != x" holds for a NaN alone. */
#define BINARY(name, type, expression)                                                             \
    static void name(type *out, const type *a, const type *b, size_t count)                        \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            type x = a[i], y = b[i];                                                               \
            out[i] = (expression);                                                                 \
        }                                                                                          \
    }

BINARY(add_f32, f32, x + y)
BINARY(min_f32, f32, x != x || x < y ? x : y)
BINARY(max_f32, f32, x != x || x > y ? x : y)
BINARY(add_f64, f64, x + y)
BINARY(min_f64, f64, x != x || x < y ? x : y)
BINARY(max_f64, f64, x != x || x > y ? x : y)
BINARY(max_i64, i64, x > y ? x : y)

static void scale_f32(f32 *out, const f32 *in, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = factor * in[i];
    }
}

static void axpy_f32(f32 *sum, const f32 *in, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = sum[i] + factor * in[i];
    }
}

static void axpy_f16(f32 *sum, const u16 *in, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = sum[i] + factor * f16_value(in[i]);
    }
}

static void axpy_bf16(f32 *sum, const u16 *in, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = sum[i] + factor * bf16_value(in[i]);
    }
}

static void add_f16(u16 *out, const u16 *a, const u16 *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = f16_of(f16_value(a[i]) + f16_value(b[i]));
    }
}

static void add_bf16(u16 *out, const u16 *a, const u16 *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint16_t)(bf16_rounded(bf16_value(a[i]) + bf16_value(b[i])) >> 16);
    }
}

static void delta(f32 *out, const f32 *anchor, const f32 *local, const f32 *residual, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float difference = anchor[i] - local[i];
        out[i] = residual ? difference + residual[i] : difference;
    }
}

static uint32_t absmax_bits(const f32 *in, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = f32_bits(in[i]) & ~F32_SIGN;
        most = bits > most ? bits : most;
    }
    return most;
}

static bool encode_bf16(u16 *code, f32 *residual, const f32 *in, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t rounded = bf16_rounded(in[i]), bits = rounded & ~F32_SIGN;
        most = bits > most ? bits : most;
        if (residual) {
            residual[i] = in[i] - f32_from_bits(rounded);
        }
        code[i] = (uint16_t)(rounded >> 16);
    }
    return most < F32_INF;
}

static void encode_int8(int8_t *code, f32 *residual, const f32 *in, float scale, float inverse,
                        size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float value = in[i] * inverse;
        value = value < 127.0f ? value : 127.0f;
        value = value > -127.0f ? value : -127.0f;
        value = (value + 0x1.8p23f) - 0x1.8p23f; /* its last bit is 1 there: rounds to even */
        if (residual) {
            residual[i] = in[i] - value * scale;
        }
        code[i] = (int8_t)value;
    }
}

static void decode_int8(f32 *out, const int8_t *code, float scale, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)code[i] * scale;
    }
}

static void axpy_int8(f32 *sum, const int8_t *code, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = sum[i] + (float)code[i] * factor;
    }
}

static void outer_plain(f32 *anchor, const f32 *mean, float rate, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        anchor[i] = anchor[i] - rate * mean[i];
    }
}

static void outer_momentum(f32 *anchor, f32 *momentum, const f32 *mean,
                           const struct vec_outer *step, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float m = step->decay * momentum[i] + step->gain * mean[i];
        float change = step->delta * mean[i] + step->momentum * m;
        momentum[i] = m;
        anchor[i] = anchor[i] - step->rate * change;
    }
}

static void digest_stripes(uint64_t lanes[8], const uint8_t *bytes, size_t stripe_count)
{
    for (size_t i = 0; i < 8 * stripe_count; i++, bytes += 8) {
        uint64_t word = 0;
        for (unsigned byte = 0; byte < 8; byte++) { /* compilers make one load of it */
            word |= (uint64_t)bytes[byte] << (8 * byte);
        }
        uint64_t mixed = lanes[i % 8] + word;
        lanes[i % 8] = (mixed & 0xffffffffu) * VEC_DIGEST_FACTOR + (mixed >> 32);
    }
}

/* What digest_stripes makes of sixteen floats. */
static void digest_floats(uint64_t lanes[8], const float values[16])
{
    digest_stripes(lanes, (const uint8_t *)values, 1);
}

static uint32_t merge_pass(const struct vec_pass *pass, size_t count)
{
    const struct vec_outer *outer = pass->outer;
    uint32_t most = 0;
    for (size_t i = 0; i < count; i += 16) {
        float mean[16], anchor[16], momentum[16];
        memcpy(mean, pass->delta + i, sizeof mean);
        memcpy(anchor, pass->anchor + i, sizeof anchor);
        if (pass->local) {
            float own[16], sum[16] = {0};
            delta(own, anchor, pass->local + i, NULL, 16);
            axpy_f32(sum, own, pass->own, 16);
            axpy_f32(sum, mean, pass->other, 16);
            memcpy(mean, sum, sizeof mean);
            memcpy(pass->mean + i, mean, sizeof mean);
        }
        uint32_t bits = absmax_bits(mean, 16);
        most = bits > most ? bits : most;
        if (pass->momentum) {
            memcpy(momentum, pass->momentum + i, sizeof momentum);
            outer_momentum(anchor, momentum, mean, outer, 16);
            digest_floats(pass->momentum_lanes, momentum);
            memcpy(pass->next_momentum + i, momentum, sizeof momentum);
        } else {
            outer_plain(anchor, mean, outer->rate * outer->delta, 16);
        }
        digest_floats(pass->mean_lanes, mean);
        digest_floats(pass->next_lanes, anchor);
        memcpy(pass->next + i, anchor, sizeof anchor);
    }
    return most;
}

static uint32_t delta_most(f32 *out, const f32 *anchor, const f32 *local, size_t count)
{
    delta(out, anchor, local, NULL, count);
    return absmax_bits(out, count);
}

static void copy_stream(void *out, const void *in, size_t size)
{
    if (size) {
        memcpy(out, in, size);
    }
}

const struct vec vec_scalar = {
#define VEC_LABEL "scalar"
#define VEC_CRC32 crc32_table
#include "kernels/vec_rows.h"
};
