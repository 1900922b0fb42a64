/* crc32.c - CRC-32 of zip (reflected polynomial 0xedb88320), by tables and by carry-less
 * multiply. Folding: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ", Intel 2009. The constants are computed here from the polynomial. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "solo_ckpt.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xedb88320u

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

uint32_t solo_crc32_join(uint32_t first, uint32_t second, uint64_t second_bytes)
{
    return multiply(first, power(second_bytes * 8)) ^ second;
}

/* ---- by tables, eight bytes at a time: the truth the others must equal ------------------ */

static struct {
    uint32_t table[8][256];
    uint64_t fold[4][2]; /* by 2048, 1024, 512 and 128 bits: the multipliers of a lane's halves */
    bool wide, narrow;   /* what this processor has */
} crc;

__attribute__((constructor)) static void fill(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) {
            value = value & 1 ? value >> 1 ^ POLYNOMIAL : value >> 1;
        }
        crc.table[0][i] = value;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t before = crc.table[slice - 1][i];
            crc.table[slice][i] = before >> 8 ^ crc.table[0][before & 255];
        }
    }
    static const unsigned distances[] = {2048, 1024, 512, 128};
    for (int i = 0; i < 4; i++) { /* a reflected product is one bit short: hence the shift */
        crc.fold[i][0] = (uint64_t)power(distances[i] + 32) << 1;
        crc.fold[i][1] = (uint64_t)power(distances[i] - 32) << 1;
    }
#if defined(__x86_64__)
    crc.narrow = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    crc.wide = crc.narrow && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq");
#endif
}

static uint32_t by_table(uint32_t value, const uint8_t *bytes, size_t size)
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
            value ^= crc.table[7 - i][word >> (8 * i) & 255];
        }
    }
    for (; size; size--, bytes++) {
        value = value >> 8 ^ crc.table[0][(value ^ *bytes) & 255];
    }
    return value;
}

#if defined(__x86_64__)

#define NARROW __attribute__((target("pclmul,sse4.1")))
#define WIDE   __attribute__((target("pclmul,sse4.1,avx512f,avx512vl,vpclmulqdq")))

NARROW static inline __m128i fold_narrow(__m128i lane, __m128i next, __m128i by)
{
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11)),
        next);
}

NARROW static inline __m128i constant(int index)
{
    return _mm_loadu_si128((const __m128i *)crc.fold[index]);
}

/* What is left in one lane is 16 bytes of message: the tables finish it. */
NARROW static uint32_t finish(__m128i lane, const uint8_t *bytes, size_t size)
{
    for (; size >= 16; size -= 16, bytes += 16) {
        lane = fold_narrow(lane, _mm_loadu_si128((const __m128i *)bytes), constant(3));
    }
    uint8_t last[16];
    _mm_storeu_si128((__m128i *)last, lane);
    return by_table(by_table(0, last, 16), bytes, size);
}

/* At least 64 bytes. */
NARROW static uint32_t by_clmul(uint32_t value, const uint8_t *bytes, size_t size)
{
    __m128i lanes[4];
    for (int i = 0; i < 4; i++) {
        lanes[i] = _mm_loadu_si128((const __m128i *)bytes + i);
    }
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)value));
    __m128i by = constant(2);
    for (bytes += 64, size -= 64; size >= 64; bytes += 64, size -= 64) {
        for (int i = 0; i < 4; i++) {
            lanes[i] = fold_narrow(lanes[i], _mm_loadu_si128((const __m128i *)bytes + i), by);
        }
    }
    for (int i = 1; i < 4; i++) {
        lanes[i] = fold_narrow(lanes[i - 1], lanes[i], constant(3));
    }
    return finish(lanes[3], bytes, size);
}

WIDE static inline __m512i fold_wide(__m512i lane, __m512i next, __m512i by)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lane, by, 0x00),
                                     _mm512_clmulepi64_epi128(lane, by, 0x11), next, 0x96);
}

/* At least 256 bytes. */
WIDE static uint32_t by_clmul_wide(uint32_t value, const uint8_t *bytes, size_t size)
{
    __m512i lanes[4];
    for (int i = 0; i < 4; i++) {
        lanes[i] = _mm512_loadu_si512(bytes + 64 * i);
    }
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)value)));
    __m512i by = _mm512_broadcast_i32x4(constant(0));
    for (bytes += 256, size -= 256; size >= 256; bytes += 256, size -= 256) {
        for (int i = 0; i < 4; i++) {
            lanes[i] = fold_wide(lanes[i], _mm512_loadu_si512(bytes + 64 * i), by);
        }
    }
    by = _mm512_broadcast_i32x4(constant(2));
    for (int i = 1; i < 4; i++) {
        lanes[i] = fold_wide(lanes[i - 1], lanes[i], by);
    }
    for (; size >= 64; bytes += 64, size -= 64) {
        lanes[3] = fold_wide(lanes[3], _mm512_loadu_si512(bytes), by);
    }
    __m128i lane = _mm512_castsi512_si128(lanes[3]);
    lane = fold_narrow(lane, _mm512_extracti32x4_epi32(lanes[3], 1), constant(3));
    lane = fold_narrow(lane, _mm512_extracti32x4_epi32(lanes[3], 2), constant(3));
    lane = fold_narrow(lane, _mm512_extracti32x4_epi32(lanes[3], 3), constant(3));
    return finish(lane, bytes, size);
}
#endif

uint32_t solo_crc32(uint32_t start, const void *bytes, size_t size)
{
    uint32_t value = ~start;
#if defined(__x86_64__)
    if (crc.wide && size >= 256) {
        return ~by_clmul_wide(value, bytes, size);
    }
    if (crc.narrow && size >= 64) {
        return ~by_clmul(value, bytes, size);
    }
#endif
    return ~by_table(value, bytes, size);
}
