/* crc32_x86.c - CRC-32 by carry-less multiply: V. Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ", Intel 2009. */
#include "kernels/crc32.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define NARROW __attribute__((target("pclmul,sse4.1")))
#define WIDE   __attribute__((target("pclmul,sse4.1,avx512f,avx512vl,vpclmulqdq")))

NARROW static inline __m128i fold_narrow(__m128i lane, __m128i next, __m128i by)
{
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11)),
        next);
}

NARROW static inline __m128i over(enum crc32_distance distance)
{
    return _mm_loadu_si128((const __m128i *)crc32_fold[distance]);
}

/* What is left in one lane is 16 bytes of message: the tables finish it. */
NARROW static uint32_t finish(__m128i lane, const uint8_t *bytes, size_t size)
{
    for (; size >= 16; size -= 16, bytes += 16) {
        lane = fold_narrow(lane, _mm_loadu_si128((const __m128i *)bytes), over(CRC32_128));
    }
    uint8_t last[16];
    _mm_storeu_si128((__m128i *)last, lane);
    return crc32_table(crc32_table(0, last, 16), bytes, size);
}

/* At least 64 bytes. */
NARROW static uint32_t narrow(uint32_t value, const uint8_t *bytes, size_t size)
{
    __m128i lanes[4];
    for (int i = 0; i < 4; i++) {
        lanes[i] = _mm_loadu_si128((const __m128i *)bytes + i);
    }
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)value));
    __m128i by = over(CRC32_512);
    for (bytes += 64, size -= 64; size >= 64; bytes += 64, size -= 64) {
        for (int i = 0; i < 4; i++) {
            lanes[i] = fold_narrow(lanes[i], _mm_loadu_si128((const __m128i *)bytes + i), by);
        }
    }
    for (int i = 1; i < 4; i++) {
        lanes[i] = fold_narrow(lanes[i - 1], lanes[i], over(CRC32_128));
    }
    return finish(lanes[3], bytes, size);
}

WIDE static inline __m512i fold_wide(__m512i lane, __m512i next, __m512i by)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lane, by, 0x00),
                                     _mm512_clmulepi64_epi128(lane, by, 0x11), next, 0x96);
}

/* At least 256 bytes. */
WIDE static uint32_t wide(uint32_t value, const uint8_t *bytes, size_t size)
{
    __m512i lanes[4];
    for (int i = 0; i < 4; i++) {
        lanes[i] = _mm512_loadu_si512(bytes + 64 * i);
    }
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)value)));
    __m512i by = _mm512_broadcast_i32x4(over(CRC32_2048));
    for (bytes += 256, size -= 256; size >= 256; bytes += 256, size -= 256) {
        for (int i = 0; i < 4; i++) {
            lanes[i] = fold_wide(lanes[i], _mm512_loadu_si512(bytes + 64 * i), by);
        }
    }
    by = _mm512_broadcast_i32x4(over(CRC32_512));
    for (int i = 1; i < 4; i++) {
        lanes[i] = fold_wide(lanes[i - 1], lanes[i], by);
    }
    for (; size >= 64; bytes += 64, size -= 64) {
        lanes[3] = fold_wide(lanes[3], _mm512_loadu_si512(bytes), by);
    }
    __m128i lane = _mm512_castsi512_si128(lanes[3]);
    lane = fold_narrow(lane, _mm512_extracti32x4_epi32(lanes[3], 1), over(CRC32_128));
    lane = fold_narrow(lane, _mm512_extracti32x4_epi32(lanes[3], 2), over(CRC32_128));
    lane = fold_narrow(lane, _mm512_extracti32x4_epi32(lanes[3], 3), over(CRC32_128));
    return finish(lane, bytes, size);
}

uint32_t crc32_clmul(uint32_t value, const uint8_t *bytes, size_t size)
{
    return size >= 64 && __builtin_cpu_supports("pclmul") ? narrow(value, bytes, size)
                                                          : crc32_table(value, bytes, size);
}

uint32_t crc32_clmul_wide(uint32_t value, const uint8_t *bytes, size_t size)
{
    return size >= 256 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vpclmulqdq")
               ? wide(value, bytes, size)
               : crc32_clmul(value, bytes, size);
}
#endif
