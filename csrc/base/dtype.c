#include "solo.h"

static const struct {
    const char *name;
    size_t bytes;
} table[SOLO_DTYPE_COUNT] = {
    [SOLO_F32] = {"float32", 4},
    [SOLO_F64] = {"float64", 8},
    [SOLO_F16] = {"float16", 2},
    [SOLO_BF16] = {"bfloat16", 2},
    [SOLO_F8E4M3] = {"float8_e4m3fn", 1},
    [SOLO_F8E5M2] = {"float8_e5m2", 1},
    [SOLO_F8E4M3Z] = {"float8_e4m3fnuz", 1},
    [SOLO_F8E5M2Z] = {"float8_e5m2fnuz", 1},
    [SOLO_F8E8M0] = {"float8_e8m0fnu", 1},
    [SOLO_I8] = {"int8", 1},
    [SOLO_U8] = {"uint8", 1},
    [SOLO_I16] = {"int16", 2},
    [SOLO_U16] = {"uint16", 2},
    [SOLO_I32] = {"int32", 4},
    [SOLO_U32] = {"uint32", 4},
    [SOLO_I64] = {"int64", 8},
    [SOLO_U64] = {"uint64", 8},
    [SOLO_BOOL] = {"bool", 1},
    [SOLO_C64] = {"complex64", 8},
    [SOLO_C128] = {"complex128", 16},
    [SOLO_C32] = {"complex32", 4},
    [SOLO_BYTES] = {"bytes", 1},
};

size_t solo_dtype_bytes(enum solo_dtype dtype)
{
    return (unsigned)dtype < SOLO_DTYPE_COUNT ? table[dtype].bytes : 0;
}

const char *solo_dtype_name(enum solo_dtype dtype)
{
    return (unsigned)dtype < SOLO_DTYPE_COUNT ? table[dtype].name : "unknown";
}
