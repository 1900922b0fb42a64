/* fp32: the values themselves. */
#include "codec/codec_row.h"

static size_t bytes(size_t count)
{
    return count * sizeof(float);
}

static bool check(const struct vec *vec, const void *in, size_t count)
{
    return vec->absmax_bits(in, count) < F32_INF;
}

static bool encode(const struct vec *vec, void *out, float *residual, const float *in, size_t count)
{
    if (out != in) {
        memcpy(out, in, bytes(count));
    }
    if (residual) {
        memset(residual, 0, bytes(count));
    }
    return check(vec, in, count);
}

static void decode(const struct vec *vec, float *out, const void *in, size_t count)
{
    (void)vec;
    memcpy(out, in, bytes(count));
}

static void add(const struct vec *vec, float *sum, const void *in, float weight, size_t count)
{
    vec->axpy_f32(sum, in, weight, count);
}

const struct codec codec_fp32 = {
    .name = "fp32",
    .is_plain = true,
    .largest = 0x7f7fffffu,
    .bytes = bytes,
    .encode = encode,
    .decode = decode,
    .add = add,
    .check = check,
};
