/* The words of vec_body.h in NEON, part of every aarch64. */
#include "kernels/crc32.h"
#include "kernels/half.h"
#include "kernels/vec.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#define TARGET
#define WORD static inline
#define F    4
#define D    2
typedef float32x4_t vf;
typedef float64x2_t vd;
typedef uint32x4_t vu;
typedef uint64x2_t vg;

#define vf_load(at)      vld1q_f32(at)
#define vf_store(at, a)  vst1q_f32(at, a)
#define vf_set(a)        vdupq_n_f32(a)
#define vf_add(a, b)     vaddq_f32(a, b)
#define vf_sub(a, b)     vsubq_f32(a, b)
#define vf_mul(a, b)     vmulq_f32(a, b)
#define vf_lesser(a, b)  vbslq_f32(vcltq_f32(a, b), a, b) /* vminq treats NaN otherwise */
#define vf_greater(a, b) vbslq_f32(vcgtq_f32(a, b), a, b)
#define vf_if_nan(a, b)  vbslq_f32(vceqq_f32(a, a), b, a)
#define vd_load(at)      vld1q_f64(at)
#define vd_store(at, a)  vst1q_f64(at, a)
#define vd_add(a, b)     vaddq_f64(a, b)
#define vd_lesser(a, b)  vbslq_f64(vcltq_f64(a, b), a, b)
#define vd_greater(a, b) vbslq_f64(vcgtq_f64(a, b), a, b)
#define vd_if_nan(a, b)  vbslq_f64(vceqq_f64(a, a), b, a)
#define vu_zero()        vdupq_n_u32(0)
#define vu_max(a, b)     vmaxq_u32(a, b)
#define vu_abs(a)        vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x7fffffff))
#define vu_most(a)       vmaxvq_u32(a)
#define vf_from_vu(a)    vreinterpretq_f32_u32(a)
#define vf_from_bf16(at) vf_from_vu(vshll_n_u16(vld1_u16(at), 16))
#define vf_stream(at, a) vst1q_f32(at, a) /* no non-temporal intrinsics here */
#define stream_end()     ((void)0)
#define vg_load(at)      vld1q_u64(at)
#define vg_store(at, a)  vst1q_u64(at, a)
#define vg_of(a)         vreinterpretq_u64_f32(a)

/* float16x4_t is how the conversion instructions are reached; its bits are the uint16s. */
WORD vf vf_from_f16(const uint16_t *at)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)));
}

WORD void f16_from_vf(uint16_t *at, vf a)
{
    vst1_u16(at, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

WORD vu bf16_round(vf a)
{
    vu bits = vreinterpretq_u32_f32(a);
    vu odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    vu near = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    vu quiet = vorrq_u32(bits, vdupq_n_u32(F32_QUIET));
    return vandq_u32(vbslq_u32(vceqq_f32(a, a), near, quiet), vdupq_n_u32(0xffff0000u));
}

WORD void bf16_from_vu(uint16_t *at, vu a)
{
    vst1_u16(at, vshrn_n_u32(a, 16));
}

WORD vf vf_from_f64(const double *at)
{
    return vcvt_high_f32_f64(vcvt_f32_f64(vd_load(at)), vd_load(at + 2));
}

WORD void f64_from_vf(double *at, vf a)
{
    vd_store(at, vcvt_f64_f32(vget_low_f32(a)));
    vd_store(at + 2, vcvt_high_f64_f32(a));
}

WORD vf vf_from_i8(const int8_t *at)
{
    uint32_t four;
    memcpy(&four, at, sizeof four);
    int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

WORD void i8_from_vf(int8_t *at, vf a)
{
    int16x4_t words = vmovn_s32(vcvtq_s32_f32(a));
    int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    uint32_t four = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
    memcpy(at, &four, sizeof four);
}

static void max_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count)
{
    size_t i = 0;
    for (; i + 2 <= count; i += 2) {
        int64x2_t x = vld1q_s64(a + i), y = vld1q_s64(b + i);
        vst1q_s64(out + i, vbslq_s64(vcgtq_s64(x, y), x, y));
    }
    vec_scalar.max_i64(out + i, a + i, b + i, count - i);
}

WORD vg vg_step(vg lanes, vg words)
{
    vg mixed = vaddq_u64(lanes, words);
    return vmlal_u32(vshrq_n_u64(mixed, 32), vmovn_u64(mixed), vdup_n_u32(VEC_DIGEST_FACTOR));
}

WORD vg bytes_load(const uint8_t *bytes)
{
    return vreinterpretq_u64_u8(vld1q_u8(bytes));
}

static void digest_stripes(uint64_t lanes[8], const uint8_t *bytes, size_t stripe_count)
{
    vg a = vg_load(lanes), b = vg_load(lanes + 2), c = vg_load(lanes + 4), d = vg_load(lanes + 6);
    for (size_t i = 0; i < stripe_count; i++, bytes += 64) {
        a = vg_step(a, bytes_load(bytes));
        b = vg_step(b, bytes_load(bytes + 16));
        c = vg_step(c, bytes_load(bytes + 32));
        d = vg_step(d, bytes_load(bytes + 48));
    }
    vg_store(lanes, a);
    vg_store(lanes + 2, b);
    vg_store(lanes + 4, c);
    vg_store(lanes + 6, d);
}

/* The C library's copy chooses by itself how it writes large sizes. */
static void copy_stream(void *out, const void *in, size_t size)
{
    vec_scalar.copy_stream(out, in, size);
}

#include "kernels/vec_body.h"

const struct vec vec_neon = {
#define VEC_LABEL "neon"
#define VEC_CRC32 crc32_arm
#include "kernels/vec_rows.h"
};
#endif
