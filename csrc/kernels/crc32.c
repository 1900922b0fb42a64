/* crc32.c - the truth by tables, eight bytes at a time, and what the twins' constants are made of:
 * all of it is computed here from the polynomial. */
#include "kernels/crc32.h"

#include <string.h>

#include "kernels/cpu.h"
#include "kernels/vec.h"
#include "solo_ckpt.h"

#define POLYNOMIAL 0xedb88320u

static uint32_t table[8][256];
uint64_t crc32_fold[CRC32_DISTANCES][2];

/* The product of two polynomials mod P, bits reflected: bit 31 is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) {
            product ^= b;
        }
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^exponent mod P. */
static uint32_t power(uint64_t exponent)
{
    uint32_t result = 1u << 31, square = 1u << 30;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) {
            result = multiply(result, square);
        }
        square = multiply(square, square);
    }
    return result;
}

__attribute__((constructor)) static void fill(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) {
            value = value & 1 ? value >> 1 ^ POLYNOMIAL : value >> 1;
        }
        table[0][i] = value;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t before = table[slice - 1][i];
            table[slice][i] = before >> 8 ^ table[0][before & 255];
        }
    }
    static const unsigned bits[CRC32_DISTANCES] = {2048, 1024, 512, 128};
    for (int i = 0; i < CRC32_DISTANCES; i++) { /* a reflected product is one bit short */
        crc32_fold[i][0] = (uint64_t)power(bits[i] + 32) << 1;
        crc32_fold[i][1] = (uint64_t)power(bits[i] - 32) << 1;
    }
}

uint32_t crc32_table(uint32_t value, const uint8_t *bytes, size_t size)
{
    for (; size >= 8; size -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        word ^= value;
        value = 0;
        for (int i = 0; i < 8; i++) {
            value ^= table[7 - i][word >> (8 * i) & 255];
        }
    }
    for (; size; size--, bytes++) {
        value = value >> 8 ^ table[0][(value ^ *bytes) & 255];
    }
    return value;
}

uint32_t solo_crc32(uint32_t start, const void *bytes, size_t size)
{
    return ~cpu_vec()->crc32(~start, bytes, size);
}

uint32_t solo_crc32_join(uint32_t first, uint32_t second, uint64_t second_bytes)
{
    return multiply(first, power(second_bytes * 8)) ^ second;
}
