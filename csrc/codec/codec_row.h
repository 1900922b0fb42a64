/* codec_row.h - what a codec is to codec.c: how one block of at most VEC_BLOCK elements is
 * encoded. Blocks follow each other, all but the last with VEC_BLOCK elements, so block i is at
 * i * bytes(VEC_BLOCK). A new codec is one file with a row, and its name in codec.c's table. */
#ifndef SOLO_CODEC_CODEC_ROW_H
#define SOLO_CODEC_CODEC_ROW_H

#include "kernels/half.h"
#include "kernels/vec.h"

struct codec {
    const char *name;
    bool is_plain;    /* the code is the fp32 values themselves: nothing to decode */
    uint32_t largest; /* bits of the largest magnitude that can be encoded */

    size_t (*bytes)(size_t count);
    /* residual (may be NULL) = in - decoded. Returns whether all values could be encoded.
     * A plain codec may be given out == in. */
    bool (*encode)(const struct vec *vec, void *out, float *residual, const float *in,
                   size_t count);
    void (*decode)(const struct vec *vec, float *out, const void *in, size_t count);
    /* sum += weight * decoded */
    void (*add)(const struct vec *vec, float *sum, const void *in, float weight, size_t count);
    bool (*check)(const struct vec *vec, const void *in, size_t count); /* all finite? */
};

/* A block's scale: four bytes, little-endian. */
#define SCALE_BYTES 4u

/* Below it a block is sent as zeros and stays in the residual: 1 / scale would not be an
 * ordinary number. No training notices a delta of 2^-100. */
#define SCALE_LEAST 0x1p-100f

static inline float scale_read(const uint8_t *block)
{
    uint32_t bits = (uint32_t)block[0] | (uint32_t)block[1] << 8 | (uint32_t)block[2] << 16 |
                    (uint32_t)block[3] << 24;
    return f32_from_bits(bits);
}

static inline void scale_write(uint8_t *block, float scale)
{
    uint32_t bits = f32_bits(scale);
    for (unsigned i = 0; i < SCALE_BYTES; i++) {
        block[i] = (uint8_t)(bits >> (8 * i));
    }
}

extern const struct codec codec_fp32, codec_bf16, codec_int8, codec_int4;

#endif
