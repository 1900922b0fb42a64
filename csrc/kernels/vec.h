/* vec.h - the table of kernels: arrays in, arrays out, no state.
 *
 * vec_scalar.c is the truth; every twin gives the same bits at every length and alignment:
 * only + - * in the written order, no fused multiply-add, no reassociation. (Where a sum or
 * product is NaN, it is NaN everywhere; its payload is free.) Callers work in blocks of
 * VEC_BLOCK elements, so that what passes from one kernel to the next stays in the first
 * level cache and each stage reads and writes main memory once.
 *
 * Memory: no alignment is needed. An output may be exactly one of the inputs of the same
 * element size, never a shifted overlap. Threads: any; all are pure. */
#ifndef SOLO_KERNELS_VEC_H
#define SOLO_KERNELS_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VEC_BLOCK      1024u /* elements per block: 4 KiB of fp32 */
#define VEC_INT8_BLOCK 256u  /* int8 codes that share one scale */

/* The multiplier a of the digest's lanes: x -> low32(x) * a + high32(x) divides by 2^32 modulo
 * a * 2^32 - 1, a prime for this a. */
#define VEC_DIGEST_FACTOR 0xffffffcfu

/* One outer step, as coefficients that all members hold as the same bits (outer.h):
 *   m <- decay * m + gain * d;   anchor <- anchor - rate * (delta * d + momentum * m) */
struct vec_outer {
    float decay, gain, rate, delta, momentum;
};

/* A merge's last steps with a stretch of plain fp32 values, in one pass over memory: the mean,
 * maybe made from two deltas, its digest, the outer step with it, the digest of what comes out.
 *   mean = delta, or with `local`: (0 + own * (anchor - local)) + other * delta
 * Digests go on from their lanes; `next` and `next_momentum` begin on a cache line. */
struct vec_pass {
    const float *delta;
    const float *local; /* NULL: delta is the mean */
    float own, other;
    float *mean; /* with `local`: goes here */
    const float *anchor, *momentum;
    float *next, *next_momentum; /* past the caches; no momentum: both NULL */
    const struct vec_outer *outer;
    uint64_t *mean_lanes, *next_lanes, *momentum_lanes;
};

struct vec {
    const char *name;

    /* Conversions round to nearest even; a NaN stays one, made quiet; 16-bit floats are
     * their bits. */
    void (*f32_of_f16)(float *out, const uint16_t *in, size_t count);
    void (*f32_of_bf16)(float *out, const uint16_t *in, size_t count);
    void (*f32_of_f64)(float *out, const double *in, size_t count);
    void (*f16_of_f32)(uint16_t *out, const float *in, size_t count);
    void (*bf16_of_f32)(uint16_t *out, const float *in, size_t count);
    void (*f64_of_f32)(double *out, const float *in, size_t count);

    /* out = a op b. min and max: a NaN wins, the first of two. */
    void (*add_f32)(float *out, const float *a, const float *b, size_t count);
    void (*min_f32)(float *out, const float *a, const float *b, size_t count);
    void (*max_f32)(float *out, const float *a, const float *b, size_t count);
    void (*add_f64)(double *out, const double *a, const double *b, size_t count);
    void (*min_f64)(double *out, const double *a, const double *b, size_t count);
    void (*max_f64)(double *out, const double *a, const double *b, size_t count);
    void (*max_i64)(int64_t *out, const int64_t *a, const int64_t *b, size_t count);

    void (*scale_f32)(float *out, const float *in, float factor, size_t count); /* factor*in */
    void (*axpy_f32)(float *sum, const float *in, float factor, size_t count);  /* += factor*in */

    /* The same over 16-bit floats: the sum in fp32; and of two, rounded once. */
    void (*axpy_f16)(float *sum, const uint16_t *in, float factor, size_t count);
    void (*axpy_bf16)(float *sum, const uint16_t *in, float factor, size_t count);
    void (*add_f16)(uint16_t *out, const uint16_t *a, const uint16_t *b, size_t count);
    void (*add_bf16)(uint16_t *out, const uint16_t *a, const uint16_t *b, size_t count);

    /* out = (anchor - local) + residual; residual may be NULL. */
    void (*delta)(float *out, const float *anchor, const float *local, const float *residual,
                  size_t count);
    /* The largest of the elements' bits without sign: below 0x7f800000 all are finite. */
    uint32_t (*absmax_bits)(const float *in, size_t count);

    /* code = bf16(in); residual (may be NULL) = in - code. Returns whether all codes are
     * finite. */
    bool (*encode_bf16)(uint16_t *code, float *residual, const float *in, size_t count);
    /* code = in * inverse rounded to nearest even within -127..127; residual (may be NULL)
     * = in - code * scale. */
    void (*encode_int8)(int8_t *code, float *residual, const float *in, float scale, float inverse,
                        size_t count);
    void (*decode_int8)(float *out, const int8_t *code, float scale, size_t count);
    void (*axpy_int8)(float *sum, const int8_t *code, float factor, size_t count);

    void (*outer_plain)(float *anchor, const float *delta, float rate, size_t count);
    void (*outer_momentum)(float *anchor, float *momentum, const float *delta,
                           const struct vec_outer *step, size_t count);

    /* Eight lanes over 64-byte stripes of little-endian words: lane = low32(x) * factor +
     * high32(x), x = lane + word. digest.c does the rest. */
    void (*digest_stripes)(uint64_t lanes[8], const uint8_t *bytes, size_t stripe_count);

    /* Counts are multiples of 16. The largest element's bits of the mean, as absmax_bits: if it is
     * not finite, what was written is rubbish. */
    uint32_t (*merge_pass)(const struct vec_pass *pass, size_t count);
    /* anchor - local; absmax_bits of it. */
    uint32_t (*delta_most)(float *out, const float *anchor, const float *local, size_t count);

    /* memcpy past the caches, for outputs larger than they are and not read again soon. */
    void (*copy_stream)(void *out, const void *in, size_t size);

    uint32_t (*crc32)(uint32_t value, const uint8_t *bytes, size_t size); /* crc32.h */
};

extern const struct vec vec_scalar;
extern const struct vec vec_avx2, vec_avx512; /* on x86-64 */
extern const struct vec vec_neon;             /* on aarch64 */

#endif
