#include "kernels/convert.h"

#include "base/err.h"
#include "kernels/cpu.h"
#include "kernels/half.h"
#include "kernels/vec.h"

/* The 8-bit floats with a sign: OCP OFP8 and, with one zero and one NaN, the "fnuz" kinds of
 * arXiv:2206.02915. */
struct f8 {
    uint32_t mantissa; /* stored bits */
    uint32_t bias;
    uint32_t largest;  /* code of the largest finite value */
    uint32_t overflow; /* what a larger one becomes: Inf, or the largest, or the NaN */
    uint32_t nan;
    bool unsigned_zero; /* 0x80 is the NaN, so there is no minus zero */
};

static const struct f8 formats[SOLO_DTYPE_COUNT] = {
    [SOLO_F8E4M3] = {3, 7, 0x7e, 0x7e, 0x7f, false},
    [SOLO_F8E5M2] = {2, 15, 0x7b, 0x7c, 0x7f, false},
    [SOLO_F8E4M3Z] = {3, 8, 0x7f, 0x80, 0x80, true},
    [SOLO_F8E5M2Z] = {2, 16, 0x7f, 0x80, 0x80, true},
};

static inline uint8_t f8_of(const struct f8 *format, float value)
{
    uint32_t bits = f32_bits(value), magnitude = bits & ~F32_SIGN, sign = bits >> 24 & 0x80u;
    uint32_t code = half_code(magnitude, format->mantissa, format->bias);
    code = code > format->largest ? format->overflow : code;
    code = magnitude > F32_INF ? format->nan : code;
    bool keeps_sign = !format->unsigned_zero || (code != 0 && code != format->nan);
    return (uint8_t)(code | (keeps_sign ? sign : 0));
}

static inline float f8_value(const struct f8 *format, uint8_t byte)
{
    uint32_t sign = (byte & 0x80u) << 24, code = byte & 0x7fu;
    uint32_t steps = (127 + 1 - format->bias - format->mantissa) << 23;
    uint32_t denormal = f32_bits((float)(int32_t)code * f32_from_bits(steps));
    uint32_t normal = (code << (23 - format->mantissa)) + ((127 - format->bias) << 23);
    uint32_t bits = code >> format->mantissa ? normal : denormal;
    bool is_inf = code == format->overflow && format->overflow != format->nan;
    bool is_special = format->unsigned_zero ? byte == format->nan : code > format->largest;
    uint32_t special = F32_INF | (is_inf ? 0 : F32_QUIET);
    return f32_from_bits(sign | (is_special ? special : bits));
}

/* A power of two from 2^-127 on, 0xff is NaN (OCP MX scales): the nearest, as torch rounds:
 * the exponent, plus one if the mantissa says more than half, or half with a normal below. */
static uint8_t e8m0_of(float value)
{
    uint32_t bits = f32_bits(value), exponent = bits >> 23 & 0xff, mantissa = bits & 0x7fffff;
    if (exponent == 0xff) {
        return 0xff;
    }
    bool up = mantissa > 0x400000 || (mantissa == 0x400000 && exponent > 0);
    return (uint8_t)(exponent + up);
}

static float e8m0_value(uint8_t byte)
{
    if (byte == 0xff) {
        return f32_from_bits(F32_INF | F32_QUIET);
    }
    return f32_from_bits(byte ? (uint32_t)byte << 23 : 0x00400000u);
}

bool convert_is_float(enum solo_dtype dtype)
{
    return dtype <= SOLO_F8E8M0;
}

bool convert_is_integer(enum solo_dtype dtype)
{
    return dtype >= SOLO_I8 && dtype <= SOLO_BOOL;
}

static inline float any_f8_value(enum solo_dtype dtype, uint8_t byte)
{
    return dtype == SOLO_F8E8M0 ? e8m0_value(byte) : f8_value(&formats[dtype], byte);
}

static inline uint8_t any_f8_of(enum solo_dtype dtype, float value)
{
    return dtype == SOLO_F8E8M0 ? e8m0_of(value) : f8_of(&formats[dtype], value);
}

static void f8_to_f32(float *out, const uint8_t *in, enum solo_dtype dtype, size_t count)
{
    float values[256];
    bool has_table = count >= 512; /* else not worth it */
    for (unsigned i = 0; has_table && i < 256; i++) {
        values[i] = any_f8_value(dtype, (uint8_t)i);
    }
    for (size_t i = 0; i < count; i++) {
        float value = has_table ? values[in[i]] : any_f8_value(dtype, in[i]);
        memcpy((uint8_t *)out + i * sizeof value, &value, sizeof value);
    }
}

#define STEP 32 /* elements between copies into locals: any alignment, known trip count */

/* One function a format, so that its numbers are constants to the compiler. */
#define FROM_F32(name, dtype)                                                                      \
    static void name##_from_f32(uint8_t *out, const uint8_t *in, size_t count)                     \
    {                                                                                              \
        for (size_t i = 0; i < count; i += STEP) {                                                 \
            size_t part = count - i < STEP ? count - i : STEP;                                     \
            uint8_t codes[STEP];                                                                   \
            float values[STEP] = {0};                                                              \
            memcpy(values, in + i * sizeof(float), part * sizeof(float));                          \
            for (size_t k = 0; k < STEP; k++) {                                                    \
                codes[k] = any_f8_of(dtype, values[k]);                                            \
            }                                                                                      \
            memcpy(out + i, codes, part);                                                          \
        }                                                                                          \
    }

FROM_F32(e4m3, SOLO_F8E4M3)
FROM_F32(e5m2, SOLO_F8E5M2)
FROM_F32(e4m3z, SOLO_F8E4M3Z)
FROM_F32(e5m2z, SOLO_F8E5M2Z)
FROM_F32(e8m0, SOLO_F8E8M0)

static void f8_from_f32(uint8_t *out, const float *in, enum solo_dtype dtype, size_t count)
{
    static void (*const table[])(uint8_t * out, const uint8_t *in, size_t count) = {
        [SOLO_F8E4M3] = e4m3_from_f32,   [SOLO_F8E5M2] = e5m2_from_f32,
        [SOLO_F8E4M3Z] = e4m3z_from_f32, [SOLO_F8E5M2Z] = e5m2z_from_f32,
        [SOLO_F8E8M0] = e8m0_from_f32,
    };
    table[dtype](out, (const uint8_t *)in, count);
}

void convert_to_f32(float *out, const void *in, enum solo_dtype dtype, size_t count)
{
    const struct vec *vec = cpu_vec();
    MUST(convert_is_float(dtype));
    if (dtype == SOLO_F32) {
        if (count) {
            memmove(out, in, count * sizeof *out);
        }
    } else if (dtype == SOLO_F16) {
        vec->f32_of_f16(out, in, count);
    } else if (dtype == SOLO_BF16) {
        vec->f32_of_bf16(out, in, count);
    } else if (dtype == SOLO_F64) {
        vec->f32_of_f64(out, in, count);
    } else {
        f8_to_f32(out, in, dtype, count);
    }
}

void convert_from_f32(void *out, const float *in, enum solo_dtype dtype, size_t count)
{
    const struct vec *vec = cpu_vec();
    MUST(convert_is_float(dtype));
    if (dtype == SOLO_F32) {
        if (count) {
            memmove(out, in, count * sizeof *in);
        }
    } else if (dtype == SOLO_F16) {
        vec->f16_of_f32(out, in, count);
    } else if (dtype == SOLO_BF16) {
        vec->bf16_of_f32(out, in, count);
    } else if (dtype == SOLO_F64) {
        vec->f64_of_f32(out, in, count);
    } else {
        f8_from_f32(out, in, dtype, count);
    }
}

/* One loop a type; memcpy, since arrays may begin at any byte. */
#define INTEGER(name, type)                                                                        \
    static void name##_to_i64(int64_t *out, const uint8_t *in, size_t count)                       \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            type value;                                                                            \
            memcpy(&value, in + i * sizeof value, sizeof value);                                   \
            int64_t wide = (int64_t)value;                                                         \
            memcpy((uint8_t *)out + i * sizeof wide, &wide, sizeof wide);                          \
        }                                                                                          \
    }                                                                                              \
    static void name##_from_i64(uint8_t *out, const int64_t *in, size_t count)                     \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            int64_t wide;                                                                          \
            memcpy(&wide, (const uint8_t *)in + i * sizeof wide, sizeof wide);                     \
            type value = (type)wide;                                                               \
            memcpy(out + i * sizeof value, &value, sizeof value);                                  \
        }                                                                                          \
    }

INTEGER(i8, int8_t)
INTEGER(u8, uint8_t)
INTEGER(i16, int16_t)
INTEGER(u16, uint16_t)
INTEGER(i32, int32_t)
INTEGER(u32, uint32_t)
INTEGER(i64, int64_t)
INTEGER(u64, uint64_t)

static void bool_to_i64(int64_t *out, const uint8_t *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t wide = in[i] != 0;
        memcpy((uint8_t *)out + i * sizeof wide, &wide, sizeof wide);
    }
}

static void bool_from_i64(uint8_t *out, const int64_t *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t wide;
        memcpy(&wide, (const uint8_t *)in + i * sizeof wide, sizeof wide);
        out[i] = wide != 0;
    }
}

static const struct {
    void (*to)(int64_t *out, const uint8_t *in, size_t count);
    void (*from)(uint8_t *out, const int64_t *in, size_t count);
} integers[SOLO_DTYPE_COUNT] = {
    [SOLO_I8] = {i8_to_i64, i8_from_i64},       [SOLO_U8] = {u8_to_i64, u8_from_i64},
    [SOLO_I16] = {i16_to_i64, i16_from_i64},    [SOLO_U16] = {u16_to_i64, u16_from_i64},
    [SOLO_I32] = {i32_to_i64, i32_from_i64},    [SOLO_U32] = {u32_to_i64, u32_from_i64},
    [SOLO_I64] = {i64_to_i64, i64_from_i64},    [SOLO_U64] = {u64_to_i64, u64_from_i64},
    [SOLO_BOOL] = {bool_to_i64, bool_from_i64},
};

void convert_to_i64(int64_t *out, const void *in, enum solo_dtype dtype, size_t count)
{
    MUST(convert_is_integer(dtype));
    integers[dtype].to(out, in, count);
}

void convert_from_i64(void *out, const int64_t *in, enum solo_dtype dtype, size_t count)
{
    MUST(convert_is_integer(dtype));
    integers[dtype].from(out, in, count);
}
