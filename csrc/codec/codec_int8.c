/* int8, absmax/127, a scale per 256 values (as arXiv:2110.02861, with a linear code).
 *
 * The scale is fp32, not fp16: deltas of 1e-6 and less are ordinary, and absmax/127 of them is
 * below the normal range of fp16. It costs 0.06 bits a value. */
#include "codec/codec_row.h"

/* Largest scale: 128 * it is still finite, whatever code a peer sends. */
#define MOST (0x1.fffffep127f / 128.0f)

static size_t bytes(size_t count)
{
    return count + (count + VEC_INT8_BLOCK - 1) / VEC_INT8_BLOCK * SCALE_BYTES;
}

static size_t part_of(size_t left)
{
    return left < VEC_INT8_BLOCK ? left : VEC_INT8_BLOCK;
}

static bool encode(const struct vec *vec, void *out, float *residual, const float *in, size_t count)
{
    uint8_t *block = out;
    for (size_t i = 0; i < count; i += VEC_INT8_BLOCK) {
        size_t part = part_of(count - i);
        uint32_t most = vec->absmax_bits(in + i, part);
        if (most >= F32_INF) {
            return false;
        }
        float absmax = f32_from_bits(most), scale = 0.0f, inverse = 0.0f;
        if (absmax >= SCALE_LEAST) {
            scale = absmax / 127.0f < MOST ? absmax / 127.0f : MOST;
            inverse = 1.0f / scale;
        }
        scale_write(block, scale);
        vec->encode_int8((int8_t *)(block + SCALE_BYTES), residual ? residual + i : NULL, in + i,
                         scale, inverse, part);
        block += SCALE_BYTES + part;
    }
    return true;
}

static void decode(const struct vec *vec, float *out, const void *in, size_t count)
{
    const uint8_t *block = in;
    for (size_t i = 0; i < count; i += VEC_INT8_BLOCK) {
        size_t part = part_of(count - i);
        vec->decode_int8(out + i, (const int8_t *)(block + SCALE_BYTES), scale_read(block), part);
        block += SCALE_BYTES + part;
    }
}

static void add(const struct vec *vec, float *sum, const void *in, float weight, size_t count)
{
    const uint8_t *block = in;
    for (size_t i = 0; i < count; i += VEC_INT8_BLOCK) {
        size_t part = part_of(count - i);
        float factor = weight * scale_read(block);
        vec->axpy_int8(sum + i, (const int8_t *)(block + SCALE_BYTES), factor, part);
        block += SCALE_BYTES + part;
    }
}

static bool check(const struct vec *vec, const void *in, size_t count)
{
    (void)vec;
    const uint8_t *block = in;
    for (size_t i = 0; i < count; i += VEC_INT8_BLOCK, block += SCALE_BYTES + VEC_INT8_BLOCK) {
        float scale = scale_read(block);
        if (!(scale >= 0.0f && scale <= MOST)) { /* catches a NaN too */
            return false;
        }
    }
    return true;
}

const struct codec codec_int8 = {
    .name = "int8",
    .largest = 0x7f7fffffu,
    .bytes = bytes,
    .encode = encode,
    .decode = decode,
    .add = add,
    .check = check,
};
