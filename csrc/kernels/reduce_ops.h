/* reduce_ops.h - out = a op b for one accumulator dtype; reduce.c chooses and arranges. */
#ifndef SOLO_KERNELS_REDUCE_OPS_H
#define SOLO_KERNELS_REDUCE_OPS_H

#include "kernels/reduce.h"

/* Arrays of `count` accumulators at any byte; out may be a or b. */
typedef void (*reduce_op_fn)(void *out, const void *a, const void *b, size_t count);

/* The function for SUM, PRODUCT, MIN or MAX of f32, f64, the integers and (PRODUCT) c64 and
 * c128; for the bit operations, of u8. NULL: there is none. */
reduce_op_fn reduce_op_of(enum reduce_op op, enum solo_dtype dtype);

/* sum[i] = sum[i] * factor. */
void reduce_scale_f64(void *sum, double factor, size_t count);
/* sum[i] = sum[i] / divisor, truncated towards zero; i64 or u64. */
void reduce_divide(void *sum, enum solo_dtype dtype, uint32_t divisor, size_t count);
/* Any non-zero byte becomes 1. */
void reduce_normalise(uint8_t *out, const uint8_t *in, size_t count);

#endif
