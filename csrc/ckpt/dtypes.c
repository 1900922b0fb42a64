#include "ckpt/dtypes.h"

#include <string.h>

#include "solo_ckpt.h"

static const struct {
    const char *torch, *storage, *safetensors;
    uint32_t bits, packed;
} table[] = {
    {"uint8", "ByteStorage", "U8", 8, 1},
    {"float32", "FloatStorage", "F32", 32, 1},
    {"float64", "DoubleStorage", "F64", 64, 1},
    {"float16", "HalfStorage", "F16", 16, 1},
    {"bfloat16", "BFloat16Storage", "BF16", 16, 1},
    {"int8", "CharStorage", "I8", 8, 1},
    {"int16", "ShortStorage", "I16", 16, 1},
    {"int32", "IntStorage", "I32", 32, 1},
    {"int64", "LongStorage", "I64", 64, 1},
    {"bool", "BoolStorage", "BOOL", 8, 1},
    {"complex64", "ComplexFloatStorage", "C64", 64, 1},
    {"complex128", "ComplexDoubleStorage", "C128", 128, 1},
    {"uint16", NULL, "U16", 16, 1},
    {"uint32", NULL, "U32", 32, 1},
    {"uint64", NULL, "U64", 64, 1},
    {"float8_e4m3fn", NULL, "F8_E4M3", 8, 1},
    {"float8_e5m2", NULL, "F8_E5M2", 8, 1},
    {"float8_e4m3fnuz", NULL, "F8_E4M3FNUZ", 8, 1},
    {"float8_e5m2fnuz", NULL, "F8_E5M2FNUZ", 8, 1},
    {"float8_e8m0fnu", NULL, "F8_E8M0", 8, 1},
    {"float4_e2m1fn_x2", NULL, "F4", 8, 2},
    {"complex32", NULL, NULL, 32, 1},
    {"qint8", "QInt8Storage", NULL, 8, 1},
    {"quint8", "QUInt8Storage", NULL, 8, 1},
    {"qint32", "QInt32Storage", NULL, 32, 1},
    {"quint4x2", "QUInt4x2Storage", NULL, 8, 1},
    {"quint2x4", "QUInt2x4Storage", NULL, 8, 1},
    {"bits8", NULL, NULL, 8, 1},
    {"bits16", NULL, NULL, 16, 1},
    {"bits1x8", NULL, NULL, 8, 1},
    {"bits2x4", NULL, NULL, 8, 1},
    {"bits4x2", NULL, NULL, 8, 1},
    {"float6_e2m3fn", NULL, "F6_E2M3", 6, 1},
    {"float6_e3m2fn", NULL, "F6_E3M2", 6, 1},
};
#define COUNT (sizeof table / sizeof *table)

static int same(const char *known, const char *name, size_t size)
{
    return known && strlen(known) == size && memcmp(known, name, size) == 0;
}

uint32_t dtype_of_storage(const char *name, size_t size)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        if (same(table[i].storage, name, size)) {
            return i;
        }
    }
    return DTYPE_UNKNOWN;
}

uint32_t dtype_of_torch(const char *name, size_t size)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        if (same(table[i].torch, name, size)) {
            return i;
        }
    }
    return DTYPE_UNKNOWN;
}

uint32_t dtype_of_safetensors(const char *name, size_t size)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        if (same(table[i].safetensors, name, size)) {
            return i;
        }
    }
    return DTYPE_UNKNOWN;
}

uint32_t dtype_bits(uint32_t dtype)
{
    return dtype < COUNT ? table[dtype].bits : 0;
}

uint32_t dtype_packed(uint32_t dtype)
{
    return dtype < COUNT ? table[dtype].packed : 1;
}

uint32_t dtype_byte(void)
{
    return 0;
}

const char *solo_ckpt_dtype(uint32_t dtype, uint32_t *bits_out)
{
    if (dtype >= COUNT) {
        *bits_out = 0;
        return NULL;
    }
    *bits_out = table[dtype].bits;
    return table[dtype].torch;
}
