/* dtypes.h - the element types of checkpoints under the three names that files use. */
#ifndef SOLO_CKPT_DTYPES_H
#define SOLO_CKPT_DTYPES_H

#include <stddef.h>
#include <stdint.h>

#define DTYPE_UNKNOWN UINT32_MAX

uint32_t dtype_of_storage(const char *name, size_t size);     /* "FloatStorage" */
uint32_t dtype_of_torch(const char *name, size_t size);       /* "float32" */
uint32_t dtype_of_safetensors(const char *name, size_t size); /* "F32" */
uint32_t dtype_bits(uint32_t dtype);
/* How many values of the safetensors shape are in one element: 2 for packed F4, else 1. */
uint32_t dtype_packed(uint32_t dtype);
uint32_t dtype_byte(void); /* uint8: what an untyped storage counts in */

#endif
