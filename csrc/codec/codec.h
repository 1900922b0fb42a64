/* codec.h - a delta to fewer bytes and back, the owner's mean, and the step after a commit.
 *
 * A chunk is `count` elements of the flat fp32 space; the local tensors under it are a list
 * of pieces, in order, of any float dtype. Each operation makes one pass over memory.
 * Encoded bytes are little-endian and the same on every instruction set:
 *   fp32: count floats. bf16: count 16-bit floats.
 *   int8: per 256 elements (the last block may be shorter) one fp32 scale, then that many
 *         codes in -127..127; scale = absmax / 127.
 *   int4: the same per 128 elements, codes in -7..7; byte i of a block's n holds code i in its
 *         lower half and code n + i in its upper.
 *
 * Memory: everything is borrowed during the call; no alignment needed. Threads: any; pure:
 * different chunks may be worked on by several threads at once. */
#ifndef SOLO_CODEC_CODEC_H
#define SOLO_CODEC_CODEC_H

#include <stdbool.h>

#include "kernels/outer.h"
#include "solo.h"

struct codec; /* one row of the table in codec.c */

/* NULL, "": fp32. An unknown name: SOLO_EINVAL with those there are. */
int codec_find(const char *name, const struct codec **out);
const struct codec *codec_exact(void); /* fp32, for sections that are always exact */
const char *codec_name(const struct codec *codec);
/* Whether this codec loses bits, and so wants residuals (error feedback). */
bool codec_has_residual(const struct codec *codec);
size_t codec_bytes(const struct codec *codec, size_t count);

/* A run of elements of one local tensor. */
struct codec_piece {
    void *data; /* only codec_apply and codec_scatter write to it */
    size_t count;
    enum solo_dtype dtype; /* a float dtype: convert_is_float */
};

/* fp32 values of the pieces, `count` in all; and back. */
void codec_gather(float *out, const struct codec_piece *pieces, size_t count);
void codec_scatter(const struct codec_piece *pieces, const float *in, size_t count);

/* What a member sends: v = (anchor - local) + residual, encoded to codec_bytes() at `out`;
 * residual_out = v - decoded. Both residuals may be NULL, or the same array; a round that
 * may be aborted keeps the old one until it is committed. Without local (pieces == NULL)
 * the delta is anchor itself.
 * SOLO_ENONFINITE (no text: the caller knows the tensor's name): *bad_out is the index of
 * the first element that is NaN or Inf or too large for the codec; `out` and residual_out
 * hold rubbish then (so do not alias the residuals unless that is fine). */
struct codec_delta {
    const float *anchor;
    const struct codec_piece *pieces;
    const float *residual;
    float *residual_out;
    size_t count;
};
int codec_encode(const struct codec *codec, const struct codec_delta *delta, void *out,
                 size_t *bad_out);

/* What an owner sends: a = residual + the sum of weights[i] * decoded(sources[i]), in slot
 * order i, in fp32; encoded to `out`; residual_out = a - decoded(out). A source that is NULL
 * or has weight 0 is left out. Sources have passed codec_check. Errors as codec_encode. */
struct codec_mean {
    const void *const *sources;
    const float *weights; /* n_i / sum of n: the caller divides once */
    size_t source_count;
    const float *residual;
    float *residual_out;
    size_t count;
};
int codec_reduce(const struct codec *codec, const struct codec_mean *mean, void *out,
                 size_t *bad_out);

/* Whether bytes from a peer are an encoding of `count` elements: SOLO_EPEER with a text if
 * the size is wrong or a value is not finite. To be called once before anything below. */
int codec_check(const struct codec *codec, const void *bytes, size_t size, size_t count);

void codec_decode(const struct codec *codec, float *out, const void *bytes, size_t count);

/* After a commit: decodes the mean, takes the outer step on anchor and momentum (as outer.h's
 * outer_step) and writes the new anchor to the local tensors (pieces may
 * be NULL: not written). */
struct codec_step {
    const void *mean;
    const struct vec_outer *outer;
    float *anchor, *momentum;
    const struct codec_piece *pieces;
    size_t count;
};
void codec_apply(const struct codec *codec, const struct codec_step *step);

#endif
