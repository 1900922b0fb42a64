/* bf16: the upper half of an fp32, rounded to nearest even. */
#include "codec/codec_row.h"

static size_t bytes(size_t count)
{
    return count * sizeof(uint16_t);
}

static bool encode(const struct vec *vec, void *out, float *residual, const float *in, size_t count)
{
    return vec->encode_bf16(out, residual, in, count);
}

static void decode(const struct vec *vec, float *out, const void *in, size_t count)
{
    vec->f32_of_bf16(out, in, count);
}

static void add(const struct vec *vec, float *sum, const void *in, float weight, size_t count)
{
    vec->axpy_bf16(sum, in, weight, count);
}

static bool check(const struct vec *vec, const void *in, size_t count)
{
    _Alignas(64) float values[VEC_BLOCK];
    decode(vec, values, in, count);
    return vec->absmax_bits(values, count) < F32_INF;
}

const struct codec codec_bf16 = {
    .name = "bf16",
    .largest = 0x7f7f7fffu, /* from 0x7f7f8000 on the nearest is Inf */
    .bytes = bytes,
    .encode = encode,
    .decode = decode,
    .add = add,
    .check = check,
};
