/* int4, absmax/7, a scale per 128 values: 4.25 bits a value. For use with residuals: a step is a
 * seventh of the block's largest value, and most values are smaller than half of one. */
#include "codec/codec_row.h"

#define BLOCK   128u
#define LARGEST 0x7f5fffffu              /* bits of 7/8 of the largest float, so that ... */
#define MOST    (0x1.fffffep127f / 8.0f) /* ... 8 scales are finite, whatever a peer sends */

static size_t bytes(size_t count)
{
    return count / BLOCK * (SCALE_BYTES + BLOCK / 2) +
           (count % BLOCK ? SCALE_BYTES + (count % BLOCK + 1) / 2 : 0);
}

static size_t part_of(size_t left)
{
    return left < BLOCK ? left : BLOCK;
}

/* Byte i of n holds codes i and n + i: loops over neighbours, which compilers make vectors of,
 * the more so where n is a constant. */
static inline void pack_some(uint8_t *out, const int8_t *codes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)((codes[i] & 15) | (codes[n + i] & 15) << 4);
    }
}

/* A code's bit 3 is its sign: 0..15 with that bit turned, and 8 less. */
static inline void unpack_some(int8_t *codes, const uint8_t *packed, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        codes[i] = (int8_t)(((packed[i] & 15) ^ 8) - 8);
        codes[n + i] = (int8_t)(((packed[i] >> 4) ^ 8) - 8);
    }
}

static void pack(uint8_t *out, const int8_t codes[BLOCK], size_t part)
{
    uint8_t packed[BLOCK / 2];
    if (part == BLOCK) {
        pack_some(packed, codes, BLOCK / 2);
    } else {
        pack_some(packed, codes, (part + 1) / 2);
    }
    memcpy(out, packed, (part + 1) / 2);
}

static void unpack(int8_t codes[BLOCK], const uint8_t *in, size_t part)
{
    uint8_t packed[BLOCK / 2];
    memcpy(packed, in, (part + 1) / 2);
    if (part == BLOCK) {
        unpack_some(codes, packed, BLOCK / 2);
    } else {
        unpack_some(codes, packed, (part + 1) / 2);
    }
}

static bool encode(const struct vec *vec, void *out, float *residual, const float *in, size_t count)
{
    uint8_t *block = out;
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t part = part_of(count - i);
        uint32_t most = vec->absmax_bits(in + i, part);
        if (most > LARGEST) {
            return false;
        }
        float absmax = f32_from_bits(most), scale = 0.0f, inverse = 0.0f;
        if (absmax >= SCALE_LEAST) {
            scale = absmax / 7.0f;
            inverse = 1.0f / scale;
        }
        int8_t codes[BLOCK] = {0};
        vec->encode_int8(codes, residual ? residual + i : NULL, in + i, scale, inverse, part);
        scale_write(block, scale);
        pack(block + SCALE_BYTES, codes, part);
        block += SCALE_BYTES + (part + 1) / 2;
    }
    return true;
}

static void decode(const struct vec *vec, float *out, const void *in, size_t count)
{
    const uint8_t *block = in;
    for (size_t i = 0; i < count; i += BLOCK, block += SCALE_BYTES + BLOCK / 2) {
        size_t part = part_of(count - i);
        int8_t codes[BLOCK];
        unpack(codes, block + SCALE_BYTES, part);
        vec->decode_int8(out + i, codes, scale_read(block), part);
    }
}

static void add(const struct vec *vec, float *sum, const void *in, float weight, size_t count)
{
    const uint8_t *block = in;
    for (size_t i = 0; i < count; i += BLOCK, block += SCALE_BYTES + BLOCK / 2) {
        size_t part = part_of(count - i);
        int8_t codes[BLOCK];
        unpack(codes, block + SCALE_BYTES, part);
        vec->axpy_int8(sum + i, codes, weight * scale_read(block), part);
    }
}

static bool check(const struct vec *vec, const void *in, size_t count)
{
    (void)vec;
    const uint8_t *block = in;
    for (size_t i = 0; i < count; i += BLOCK, block += SCALE_BYTES + BLOCK / 2) {
        float scale = scale_read(block);
        if (!(scale >= 0.0f && scale <= MOST)) { /* catches a NaN too */
            return false;
        }
    }
    return true;
}

const struct codec codec_int4 = {
    .name = "int4",
    .largest = LARGEST,
    .bytes = bytes,
    .encode = encode,
    .decode = decode,
    .add = add,
    .check = check,
};
