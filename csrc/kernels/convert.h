/* convert.h - every float dtype to fp32 and back, every integer dtype to int64 and back.
 *
 * fp32 to less: round to nearest even; what is too large becomes Inf, in e4m3fn the largest
 * value, in the fnuz kinds NaN: the bits of torch 2.13 (a NaN's payload aside). Integers outside
 * int64 or the target are cut to its bits; a bool becomes 0 or 1. Memory: as vec.h. Threads: any,
 * pure. */
#ifndef SOLO_KERNELS_CONVERT_H
#define SOLO_KERNELS_CONVERT_H

#include <stdbool.h>

#include "solo.h"

bool convert_is_float(enum solo_dtype dtype);   /* f32 f64 f16 bf16 and the fp8 kinds */
bool convert_is_integer(enum solo_dtype dtype); /* i8 .. u64 and bool */

void convert_to_f32(float *out, const void *in, enum solo_dtype dtype, size_t count);
void convert_from_f32(void *out, const float *in, enum solo_dtype dtype, size_t count);
void convert_to_i64(int64_t *out, const void *in, enum solo_dtype dtype, size_t count);
void convert_from_i64(void *out, const int64_t *in, enum solo_dtype dtype, size_t count);

#endif
