/* The words of vec_body.h in AVX2 with F16C. */
#include "kernels/crc32.h"
#include "kernels/half.h"
#include "kernels/vec.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,f16c")))
#define WORD   TARGET static inline
#define F      8
#define D      4
typedef __m256 vf;
typedef __m256d vd;
typedef __m256i vu, vg;

#define vf_load(at)        _mm256_loadu_ps(at)
#define vf_store(at, a)    _mm256_storeu_ps(at, a)
#define vf_set(a)          _mm256_set1_ps(a)
#define vf_add(a, b)       _mm256_add_ps(a, b)
#define vf_sub(a, b)       _mm256_sub_ps(a, b)
#define vf_mul(a, b)       _mm256_mul_ps(a, b)
#define vf_lesser(a, b)    _mm256_min_ps(a, b)
#define vf_greater(a, b)   _mm256_max_ps(a, b)
#define vf_if_nan(a, b)    _mm256_blendv_ps(b, a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q))
#define vd_load(at)        _mm256_loadu_pd(at)
#define vd_store(at, a)    _mm256_storeu_pd(at, a)
#define vd_add(a, b)       _mm256_add_pd(a, b)
#define vd_lesser(a, b)    _mm256_min_pd(a, b)
#define vd_greater(a, b)   _mm256_max_pd(a, b)
#define vd_if_nan(a, b)    _mm256_blendv_pd(b, a, _mm256_cmp_pd(a, a, _CMP_UNORD_Q))
#define vu_zero()          _mm256_setzero_si256()
#define vu_max(a, b)       _mm256_max_epu32(a, b)
#define vu_abs(a)          _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff))
#define vf_from_vu(a)      _mm256_castsi256_ps(a)
#define vf_stream(at, a)   _mm256_stream_ps(at, a)
#define stream_end()       _mm_sfence() /* no flag that is set after them overtakes them */
#define vg_load(at)        _mm256_loadu_si256((const vg *)(at))
#define vg_store(at, a)    _mm256_storeu_si256((vg *)(at), a)
#define vg_of(a)           _mm256_castps_si256(a)
#define load16(at)         _mm_loadu_si128((const __m128i *)(at))
#define vf_from_f16(at)    _mm256_cvtph_ps(load16(at))
#define f16_from_vf(at, a) _mm_storeu_si128((__m128i *)(at), _mm256_cvtps_ph(a, 0))
#define vf_from_bf16(at)   vf_from_vu(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(at)), 16))

WORD vu bf16_round(vf a)
{
    vu bits = _mm256_castps_si256(a), low = _mm256_set1_epi32((int)0xffff0000u);
    vu odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    vu near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    vu quiet = _mm256_or_si256(bits, _mm256_set1_epi32((int)F32_QUIET));
    vu nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_and_si256(_mm256_blendv_epi8(near, quiet, nan), low);
}

WORD void bf16_from_vu(uint16_t *at, vu a)
{
    vu upper = _mm256_srli_epi32(a, 16);
    __m128i low = _mm256_castsi256_si128(upper), high = _mm256_extracti128_si256(upper, 1);
    _mm_storeu_si128((__m128i *)at, _mm_packus_epi32(low, high));
}

WORD vf vf_from_f64(const double *at)
{
    __m128 low = _mm256_cvtpd_ps(vd_load(at)), high = _mm256_cvtpd_ps(vd_load(at + 4));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

WORD void f64_from_vf(double *at, vf a)
{
    vd_store(at, _mm256_cvtps_pd(_mm256_castps256_ps128(a)));
    vd_store(at + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
}

WORD vf vf_from_i8(const int8_t *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}

WORD void i8_from_vf(int8_t *at, vf a)
{
    vu whole = _mm256_cvtps_epi32(a);
    __m128i low = _mm256_castsi256_si128(whole), high = _mm256_extracti128_si256(whole, 1);
    __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64((__m128i *)at, _mm_packs_epi16(words, words));
}

WORD uint32_t vu_most(vu a)
{
    uint32_t lanes[F], most = 0;
    _mm256_storeu_si256((vu *)lanes, a);
    for (unsigned i = 0; i < F; i++) {
        most = lanes[i] > most ? lanes[i] : most;
    }
    return most;
}

TARGET static void max_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        vu x = _mm256_loadu_si256((const vu *)(a + i)), y = _mm256_loadu_si256((const vu *)(b + i));
        vu more = _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi64(x, y));
        _mm256_storeu_si256((vu *)(out + i), more);
    }
    vec_scalar.max_i64(out + i, a + i, b + i, count - i);
}

WORD vg vg_step(vg lanes, vg words)
{
    vu mixed = _mm256_add_epi64(lanes, words);
    vu product = _mm256_mul_epu32(mixed, _mm256_set1_epi64x(VEC_DIGEST_FACTOR));
    return _mm256_add_epi64(product, _mm256_srli_epi64(mixed, 32));
}

TARGET static void digest_stripes(uint64_t lanes[8], const uint8_t *bytes, size_t stripe_count)
{
    vg first = vg_load(lanes), second = vg_load(lanes + 4);
    for (size_t i = 0; i < stripe_count; i++, bytes += 64) {
        first = vg_step(first, vg_load(bytes));
        second = vg_step(second, vg_load(bytes + 32));
    }
    vg_store(lanes, first);
    vg_store(lanes + 4, second);
}

TARGET static void copy_stream(void *out, const void *in, size_t size)
{
    uint8_t *to = out;
    const uint8_t *from = in;
    size_t head = -(uintptr_t)to & 31;
    head = head < size ? head : size;
    vec_scalar.copy_stream(to, from, head);
    size_t i = head;
    for (; i + 32 <= size; i += 32) {
        _mm256_stream_si256((vu *)(to + i), _mm256_loadu_si256((const vu *)(from + i)));
    }
    vec_scalar.copy_stream(to + i, from + i, size - i);
    stream_end();
}

#include "kernels/vec_body.h"

const struct vec vec_avx2 = {
#define VEC_LABEL "avx2"
#define VEC_CRC32 crc32_clmul
#include "kernels/vec_rows.h"
};
#endif
