/* The words of vec_body.h in AVX-512 (F, BW, DQ, VL: every server since Skylake and Zen 4). */
#include "kernels/crc32.h"
#include "kernels/half.h"
#include "kernels/vec.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define WORD   TARGET static inline
#define F      16
#define D      8
typedef __m512 vf;
typedef __m512d vd;
typedef __m512i vu, vg;

#define vf_load(at)        _mm512_loadu_ps(at)
#define vf_store(at, a)    _mm512_storeu_ps(at, a)
#define vf_set(a)          _mm512_set1_ps(a)
#define vf_add(a, b)       _mm512_add_ps(a, b)
#define vf_sub(a, b)       _mm512_sub_ps(a, b)
#define vf_mul(a, b)       _mm512_mul_ps(a, b)
#define vf_lesser(a, b)    _mm512_min_ps(a, b)
#define vf_greater(a, b)   _mm512_max_ps(a, b)
#define vf_if_nan(a, b)    _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a)
#define vd_load(at)        _mm512_loadu_pd(at)
#define vd_store(at, a)    _mm512_storeu_pd(at, a)
#define vd_add(a, b)       _mm512_add_pd(a, b)
#define vd_lesser(a, b)    _mm512_min_pd(a, b)
#define vd_greater(a, b)   _mm512_max_pd(a, b)
#define vd_if_nan(a, b)    _mm512_mask_mov_pd(b, _mm512_cmp_pd_mask(a, a, _CMP_UNORD_Q), a)
#define vu_zero()          _mm512_setzero_si512()
#define vu_max(a, b)       _mm512_max_epu32(a, b)
#define vu_abs(a)          _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff))
#define vu_most(a)         _mm512_reduce_max_epu32(a)
#define vf_from_vu(a)      _mm512_castsi512_ps(a)
#define vf_stream(at, a)   _mm512_stream_ps(at, a)
#define stream_end()       _mm_sfence() /* no flag that is set after them overtakes them */
#define vg_load(at)        _mm512_loadu_si512(at)
#define vg_store(at, a)    _mm512_storeu_si512(at, a)
#define vg_of(a)           _mm512_castps_si512(a)
#define load32(at)         _mm256_loadu_si256((const __m256i *)(at))
#define vf_from_f16(at)    _mm512_cvtph_ps(load32(at))
#define f16_from_vf(at, a) _mm256_storeu_si256((__m256i *)(at), _mm512_cvtps_ph(a, 0))
#define vf_from_bf16(at)   vf_from_vu(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(at)), 16))

WORD vu bf16_round(vf a)
{
    vu bits = _mm512_castps_si512(a), low = _mm512_set1_epi32((int)0xffff0000u);
    vu odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    vu near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    vu quiet = _mm512_or_si512(bits, _mm512_set1_epi32((int)F32_QUIET));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_and_si512(_mm512_mask_mov_epi32(near, nan, quiet), low);
}

WORD void bf16_from_vu(uint16_t *at, vu a)
{
    _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)));
}

WORD vf vf_from_f64(const double *at)
{
    __m256 low = _mm512_cvtpd_ps(vd_load(at)), high = _mm512_cvtpd_ps(vd_load(at + 8));
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

WORD void f64_from_vf(double *at, vf a)
{
    vd_store(at, _mm512_cvtps_pd(_mm512_castps512_ps256(a)));
    vd_store(at + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)));
}

WORD vf vf_from_i8(const int8_t *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

WORD void i8_from_vf(int8_t *at, vf a)
{
    _mm_storeu_si128((__m128i *)at, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

TARGET static void max_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        vu x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(b + i);
        _mm512_storeu_si512(out + i, _mm512_max_epi64(x, y));
    }
    vec_scalar.max_i64(out + i, a + i, b + i, count - i);
}

WORD vg vg_step(vg lanes, vg words)
{
    vg mixed = _mm512_add_epi64(lanes, words), factor = _mm512_set1_epi64(VEC_DIGEST_FACTOR);
    return _mm512_add_epi64(_mm512_mul_epu32(mixed, factor), _mm512_srli_epi64(mixed, 32));
}

TARGET static void digest_stripes(uint64_t lanes[8], const uint8_t *bytes, size_t stripe_count)
{
    vg all = vg_load(lanes);
    for (size_t i = 0; i < stripe_count; i++, bytes += 64) {
        all = vg_step(all, vg_load(bytes));
    }
    vg_store(lanes, all);
}

TARGET static void copy_stream(void *out, const void *in, size_t size)
{
    uint8_t *to = out;
    const uint8_t *from = in;
    size_t head = -(uintptr_t)to & 63;
    head = head < size ? head : size;
    vec_scalar.copy_stream(to, from, head);
    size_t i = head;
    for (; i + 64 <= size; i += 64) {
        _mm512_stream_si512((vu *)(to + i), _mm512_loadu_si512(from + i));
    }
    vec_scalar.copy_stream(to + i, from + i, size - i);
    stream_end();
}

#include "kernels/vec_body.h"

const struct vec vec_avx512 = {
#define VEC_LABEL "avx512"
#define VEC_CRC32 crc32_clmul_wide
#include "kernels/vec_rows.h"
};
#endif
