/* half.h - one float of 16 or 8 bits at a time: the words that vec_scalar.c and convert.c are
 * made of. Bits in, bits out; rounding to nearest even. */
#ifndef SOLO_KERNELS_HALF_H
#define SOLO_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

#define F32_SIGN  0x80000000u
#define F32_INF   0x7f800000u
#define F32_QUIET 0x00400000u

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The code, without sign, of a format with `mantissa` stored bits and this exponent bias that
 * is nearest to an fp32 value given by its bits without sign (not a NaN). What is too large
 * gives a code beyond the format's largest; the caller knows what that becomes. */
static inline uint32_t half_code(uint32_t magnitude, uint32_t mantissa, uint32_t bias)
{
    /* Below the smallest normal, 2^(1 - bias), codes count steps of 2^(1 - bias - mantissa):
     * the last bit of an fp32 of 2^23 steps, so adding that rounds. */
    uint32_t steps = (127 + 1 - bias - mantissa + 23) << 23;
    uint32_t denormal = f32_bits(f32_from_bits(magnitude) + f32_from_bits(steps)) - steps;
    uint32_t shift = 23 - mantissa, odd = magnitude >> shift & 1;
    uint32_t normal = (magnitude + odd + ((1u << (shift - 1)) - 1)) >> shift;
    return magnitude < (127 + 1 - bias) << 23 ? denormal : normal - ((127 - bias) << mantissa);
}

static inline uint16_t f16_of(float value)
{
    uint32_t bits = f32_bits(value), magnitude = bits & ~F32_SIGN, sign = bits >> 16 & 0x8000u;
    if (magnitude > F32_INF) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x03ffu));
    }
    uint32_t code = half_code(magnitude, 10, 15);
    return (uint16_t)(sign | (code > 0x7c00u ? 0x7c00u : code));
}

static inline float f16_value(uint16_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 0x3ffu;
    if (exponent == 31) {
        uint32_t quiet = mantissa ? F32_QUIET : 0;
        return f32_from_bits(sign | F32_INF | quiet | mantissa << 13);
    }
    if (exponent == 0) { /* exact */
        return f32_from_bits(sign | f32_bits((float)mantissa * 0x1p-24f));
    }
    return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Still as fp32 bits, the low 16 zero. */
static inline uint32_t bf16_rounded(float value)
{
    uint32_t bits = f32_bits(value);
    if ((bits & ~F32_SIGN) > F32_INF) {
        return (bits | F32_QUIET) & 0xffff0000u;
    }
    return (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
}

static inline float bf16_value(uint16_t half)
{
    return f32_from_bits((uint32_t)half << 16);
}

#endif
