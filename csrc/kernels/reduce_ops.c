/* Loops over a fixed number of elements between copies into locals: any alignment, no aliasing
 * to fear, and every compiler makes vectors of them at -O2. */
#include "kernels/reduce_ops.h"

#include <string.h>

#include "kernels/cpu.h"
#include "kernels/vec.h"

#define STEP_BYTES 64

/* Per element: x[i] = expression of x[i] and y[i]. */
#define BINARY(name, type, expression)                                                             \
    static inline void name##_step(type *x, const type *y)                                         \
    {                                                                                              \
        for (size_t i = 0; i < STEP_BYTES / sizeof(type); i++) {                                   \
            x[i] = (type)(expression);                                                             \
        }                                                                                          \
    }                                                                                              \
    static void name(void *out, const void *a, const void *b, size_t count)                        \
    {                                                                                              \
        type x[STEP_BYTES / sizeof(type)], y[STEP_BYTES / sizeof(type)];                           \
        size_t size = count * sizeof(type), at = 0;                                                \
        for (; at + STEP_BYTES <= size; at += STEP_BYTES) {                                        \
            memcpy(x, (const uint8_t *)a + at, STEP_BYTES);                                        \
            memcpy(y, (const uint8_t *)b + at, STEP_BYTES);                                        \
            name##_step(x, y);                                                                     \
            memcpy((uint8_t *)out + at, x, STEP_BYTES);                                            \
        }                                                                                          \
        if (at < size) {                                                                           \
            memset(x, 0, sizeof x);                                                                \
            memset(y, 0, sizeof y);                                                                \
            memcpy(x, (const uint8_t *)a + at, size - at);                                         \
            memcpy(y, (const uint8_t *)b + at, size - at);                                         \
            name##_step(x, y);                                                                     \
            memcpy((uint8_t *)out + at, x, size - at);                                             \
        }                                                                                          \
    }

/* Sums and products wrap, so they are of the unsigned type; uint32_t keeps the product of two
 * uint16_t out of int, where it could overflow. */
#define WRAPPING(bits)                                                                             \
    BINARY(add_u##bits, uint##bits##_t, x[i] + y[i])                                               \
    BINARY(multiply_u##bits, uint##bits##_t, (uint64_t)x[i] * y[i])
#define ORDERED(name, type)                                                                        \
    BINARY(min_##name, type, x[i] < y[i] ? x[i] : y[i])                                            \
    BINARY(max_##name, type, x[i] > y[i] ? x[i] : y[i])

WRAPPING(8)
WRAPPING(16)
WRAPPING(32)
WRAPPING(64)
ORDERED(i8, int8_t)
ORDERED(u8, uint8_t)
ORDERED(i16, int16_t)
ORDERED(u16, uint16_t)
ORDERED(i32, int32_t)
ORDERED(u32, uint32_t)
ORDERED(i64, int64_t)
ORDERED(u64, uint64_t)
BINARY(and_u8, uint8_t, x[i] & y[i])
BINARY(or_u8, uint8_t, x[i] | y[i])
BINARY(xor_u8, uint8_t, x[i] ^ y[i])
BINARY(multiply_f32, float, x[i] * y[i])
BINARY(multiply_f64, double, x[i] * y[i])

#define COMPLEX(name, type)                                                                        \
    static void name(void *out, const void *a, const void *b, size_t count)                        \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            type x[2], y[2], product[2];                                                           \
            memcpy(x, (const uint8_t *)a + i * sizeof x, sizeof x);                                \
            memcpy(y, (const uint8_t *)b + i * sizeof y, sizeof y);                                \
            product[0] = x[0] * y[0] - x[1] * y[1];                                                \
            product[1] = x[0] * y[1] + x[1] * y[0];                                                \
            memcpy((uint8_t *)out + i * sizeof product, product, sizeof product);                  \
        }                                                                                          \
    }

COMPLEX(multiply_c64, float)
COMPLEX(multiply_c128, double)

/* The kernels of vec.h under the common type. */
#define VEC(name)                                                                                  \
    static void name(void *out, const void *a, const void *b, size_t count)                        \
    {                                                                                              \
        cpu_vec()->name(out, a, b, count);                                                         \
    }

VEC(add_f32)
VEC(min_f32)
VEC(max_f32)
VEC(add_f64)
VEC(min_f64)
VEC(max_f64)

static const struct {
    reduce_op_fn sum, product, min, max;
} table[SOLO_DTYPE_COUNT] = {
    [SOLO_F32] = {add_f32, multiply_f32, min_f32, max_f32},
    [SOLO_F64] = {add_f64, multiply_f64, min_f64, max_f64},
    [SOLO_I8] = {add_u8, multiply_u8, min_i8, max_i8},
    [SOLO_U8] = {add_u8, multiply_u8, min_u8, max_u8},
    [SOLO_I16] = {add_u16, multiply_u16, min_i16, max_i16},
    [SOLO_U16] = {add_u16, multiply_u16, min_u16, max_u16},
    [SOLO_I32] = {add_u32, multiply_u32, min_i32, max_i32},
    [SOLO_U32] = {add_u32, multiply_u32, min_u32, max_u32},
    [SOLO_I64] = {add_u64, multiply_u64, min_i64, max_i64},
    [SOLO_U64] = {add_u64, multiply_u64, min_u64, max_u64},
    [SOLO_C64] = {.product = multiply_c64},
    [SOLO_C128] = {.product = multiply_c128},
};

reduce_op_fn reduce_op_of(enum reduce_op op, enum solo_dtype dtype)
{
    switch (op) {
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_PREMUL:
        return table[dtype].sum;
    case REDUCE_PRODUCT:
        return table[dtype].product;
    case REDUCE_MIN:
        return table[dtype].min;
    case REDUCE_MAX:
        return table[dtype].max;
    case REDUCE_BAND:
        return and_u8;
    case REDUCE_BOR:
        return or_u8;
    case REDUCE_BXOR:
        return xor_u8;
    case REDUCE_OP_COUNT:
        break;
    }
    return NULL;
}

void reduce_scale_f64(void *sum, double factor, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, (uint8_t *)sum + i * sizeof value, sizeof value);
        value = value * factor;
        memcpy((uint8_t *)sum + i * sizeof value, &value, sizeof value);
    }
}

void reduce_divide(void *sum, enum solo_dtype dtype, uint32_t divisor, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t value;
        memcpy(&value, (uint8_t *)sum + i * sizeof value, sizeof value);
        value = dtype == SOLO_U64 ? (int64_t)((uint64_t)value / divisor) : value / divisor;
        memcpy((uint8_t *)sum + i * sizeof value, &value, sizeof value);
    }
}

void reduce_normalise(uint8_t *out, const uint8_t *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = in[i] != 0;
    }
}
