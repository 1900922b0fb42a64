/* reduce.h - reductions of collectives, over every dtype where they have a meaning.
 *
 * The guarantee: sources are taken in the order given (rank order); floats of 16 and 8 bits
 * (and complex32) are accumulated in fp32 and rounded once, at the end; AVG multiplies by
 * 1/divisor in the accumulator before that rounding. So bits do not depend on transport,
 * piece size or instruction set. Integer SUM and PRODUCT wrap; integer AVG truncates towards
 * zero, summed in 64 bits. bool is any non-zero byte in, 0 or 1 out: SUM, MAX and BOR are
 * "or", PRODUCT, MIN and BAND are "and". MIN and MAX of floats: a NaN wins. complex: SUM,
 * AVG, PRODUCT, PREMUL.
 *
 * Memory: borrowed during the call; no alignment needed. `out` may be exactly one of the
 * sources (any of them), never a shifted overlap. Threads: any, pure. */
#ifndef SOLO_KERNELS_REDUCE_H
#define SOLO_KERNELS_REDUCE_H

#include "solo.h"

enum reduce_op {
    REDUCE_SUM,
    REDUCE_AVG,
    REDUCE_PRODUCT,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_BAND,
    REDUCE_BOR,
    REDUCE_BXOR,
    REDUCE_PREMUL, /* sum of factor * source, floats and complex only */
    REDUCE_OP_COUNT,
};

const char *reduce_op_name(enum reduce_op op); /* "SUM"; "unknown" for no op */

/* 0, or SOLO_ENOTSUP with a text: this op has no meaning for this dtype. */
int reduce_check(enum reduce_op op, enum solo_dtype dtype);

struct reduce {
    enum reduce_op op;
    enum solo_dtype dtype; /* (op, dtype) passed reduce_check: our bug otherwise */
    uint32_t divisor;      /* AVG: what the sum is divided by, at least 1 */
    double factor;         /* PREMUL */
};

/* How an output is written. */
enum reduce_store {
    REDUCE_CACHED,
    REDUCE_STREAMED, /* past the caches: outputs larger than these, read by others later */
};

/* out[i] = source 0 [i] op source 1 [i] op ...: one pass over memory for any number of
 * sources, which is at least 1. */
void reduce_n(const struct reduce *reduce, void *out, const void *const *sources,
              size_t source_count, size_t count, enum reduce_store store);

/* The same in steps, for sources that come one after the other: start with the first, add
 * each next, finish. The accumulator is `count` elements of reduce_sum_dtype(). finish may
 * write over the accumulator itself. start+add+finish equals reduce_n bit for bit. */
enum solo_dtype reduce_sum_dtype(enum reduce_op op, enum solo_dtype dtype);
void reduce_start(const struct reduce *reduce, void *sum, const void *source, size_t count);
void reduce_add(const struct reduce *reduce, void *sum, const void *source, size_t count);
void reduce_finish(const struct reduce *reduce, void *out, const void *sum, size_t count);

#endif
