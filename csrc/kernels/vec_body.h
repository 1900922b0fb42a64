/* vec_body.h - the twins of vec_scalar.c, written once over a few vector words that the
 * including file defines for its instruction set:
 *
 *   TARGET            attribute of every function          F, D  lanes of vf and vd
 *   vf vd vu          vectors of float, double, uint32
 *   vf_load vf_store vf_set vf_add vf_sub vf_mul, vd_load vd_store vd_add
 *   vf_lesser(a, b)   a < b ? a : b, so b if either is a NaN; vf_greater; vd_ likewise
 *   vf_if_nan(a, b)   a where a is a NaN, else b; vd_if_nan
 *   vf_from_f16 (uint16 *), vf_from_bf16, vf_from_f64 (F doubles), vf_from_i8: loads
 *   f16_from_vf, f64_from_vf, i8_from_vf (whole values in -127..127): stores
 *   bf16_round (vf to vu: half.h's bf16_rounded), bf16_from_vu: store of the upper halves
 *   vu_zero vu_max vu_abs (vf to vu: bits without sign) vu_most (largest lane)
 *   vf_from_vu        bits as floats
 *   vf_stream, stream_end: stores past the caches, aligned; what follows them comes after them
 *   vg                a vf's worth of the digest's lanes: vg_load, vg_store, vg_of (vf to vg),
 *                     vg_step(lanes, words)
 *   max_i64, digest_stripes, copy_stream: whole functions
 *
 * What is left below a full vector goes to vec_scalar. */

/* Callers work block after block: what the next ones read is on its way meanwhile, which the
 * processor does not see by itself, because each block ends with a page. Past the end it does
 * nothing. */
#define AHEAD_BYTES 8192
#define AHEAD(at)   __builtin_prefetch((const char *)(at) + AHEAD_BYTES, 0, 2)

#define EACH(i, lanes)                                                                             \
    size_t i = 0;                                                                                  \
    for (; i + (lanes) <= count; i += (lanes))
#define REST(i, name, ...)                                                                         \
    if (i < count) {                                                                               \
        vec_scalar.name(__VA_ARGS__, count - i);                                                   \
    }

TARGET static void f32_of_f16(float *out, const uint16_t *in, size_t count)
{
    EACH(i, F) vf_store(out + i, vf_from_f16(in + i));
    REST(i, f32_of_f16, out + i, in + i)
}

TARGET static void f32_of_bf16(float *out, const uint16_t *in, size_t count)
{
    EACH(i, F) vf_store(out + i, vf_from_bf16(in + i));
    REST(i, f32_of_bf16, out + i, in + i)
}

TARGET static void f32_of_f64(float *out, const double *in, size_t count)
{
    EACH(i, F) vf_store(out + i, vf_from_f64(in + i));
    REST(i, f32_of_f64, out + i, in + i)
}

TARGET static void f16_of_f32(uint16_t *out, const float *in, size_t count)
{
    EACH(i, F) f16_from_vf(out + i, vf_load(in + i));
    REST(i, f16_of_f32, out + i, in + i)
}

TARGET static void bf16_of_f32(uint16_t *out, const float *in, size_t count)
{
    EACH(i, F) bf16_from_vu(out + i, bf16_round(vf_load(in + i)));
    REST(i, bf16_of_f32, out + i, in + i)
}

TARGET static void f64_of_f32(double *out, const float *in, size_t count)
{
    EACH(i, F) f64_from_vf(out + i, vf_load(in + i));
    REST(i, f64_of_f32, out + i, in + i)
}

#define BINARY(name, type, v, lanes, expression)                                                   \
    TARGET static void name(type *out, const type *a, const type *b, size_t count)                 \
    {                                                                                              \
        EACH(i, lanes)                                                                             \
        {                                                                                          \
            v x = v##_load(a + i), y = v##_load(b + i);                                            \
            v##_store(out + i, expression);                                                        \
        }                                                                                          \
        REST(i, name, out + i, a + i, b + i)                                                       \
    }

BINARY(add_f32, float, vf, F, vf_add(x, y))
BINARY(min_f32, float, vf, F, vf_if_nan(x, vf_lesser(x, y)))
BINARY(max_f32, float, vf, F, vf_if_nan(x, vf_greater(x, y)))
BINARY(add_f64, double, vd, D, vd_add(x, y))
BINARY(min_f64, double, vd, D, vd_if_nan(x, vd_lesser(x, y)))
BINARY(max_f64, double, vd, D, vd_if_nan(x, vd_greater(x, y)))

TARGET static void scale_f32(float *out, const float *in, float factor, size_t count)
{
    vf by = vf_set(factor);
    EACH(i, F) vf_store(out + i, vf_mul(by, vf_load(in + i)));
    REST(i, scale_f32, out + i, in + i, factor)
}

TARGET static void axpy_f32(float *sum, const float *in, float factor, size_t count)
{
    vf by = vf_set(factor);
    EACH(i, F) vf_store(sum + i, vf_add(vf_load(sum + i), vf_mul(by, vf_load(in + i))));
    REST(i, axpy_f32, sum + i, in + i, factor)
}

/* For each kind of 16-bit float: its load and its store of a vf. */
#define HALF_SUMS(half, load, store)                                                               \
    TARGET static void axpy_##half(float *sum, const uint16_t *in, float factor, size_t count)     \
    {                                                                                              \
        vf by = vf_set(factor);                                                                    \
        EACH(i, F) vf_store(sum + i, vf_add(vf_load(sum + i), vf_mul(by, load(in + i))));          \
        REST(i, axpy_##half, sum + i, in + i, factor)                                              \
    }                                                                                              \
    TARGET static void add_##half(uint16_t *out, const uint16_t *a, const uint16_t *b,             \
                                  size_t count)                                                    \
    {                                                                                              \
        EACH(i, F) store(out + i, vf_add(load(a + i), load(b + i)));                               \
        REST(i, add_##half, out + i, a + i, b + i)                                                 \
    }
#define bf16_from_vf(at, a) bf16_from_vu(at, bf16_round(a))

HALF_SUMS(f16, vf_from_f16, f16_from_vf)
HALF_SUMS(bf16, vf_from_bf16, bf16_from_vf)

TARGET static void delta(float *out, const float *anchor, const float *local, const float *residual,
                         size_t count)
{
    size_t i = 0;
    for (; residual && i + F <= count; i += F) {
        AHEAD(anchor + i);
        AHEAD(local + i);
        AHEAD(residual + i);
        vf difference = vf_sub(vf_load(anchor + i), vf_load(local + i));
        vf_store(out + i, vf_add(difference, vf_load(residual + i)));
    }
    for (; !residual && i + F <= count; i += F) {
        AHEAD(anchor + i);
        AHEAD(local + i);
        vf_store(out + i, vf_sub(vf_load(anchor + i), vf_load(local + i)));
    }
    REST(i, delta, out + i, anchor + i, local + i, residual ? residual + i : NULL)
}

TARGET static uint32_t absmax_bits(const float *in, size_t count)
{
    vu most = vu_zero(), other = vu_zero();
    size_t i = 0;
    for (; i + 2 * F <= count; i += 2 * F) {
        most = vu_max(most, vu_abs(vf_load(in + i)));
        other = vu_max(other, vu_abs(vf_load(in + i + F)));
    }
    uint32_t left = vec_scalar.absmax_bits(in + i, count - i), found = vu_most(vu_max(most, other));
    return left > found ? left : found;
}

TARGET static bool encode_bf16(uint16_t *code, float *residual, const float *in, size_t count)
{
    vu most = vu_zero();
    EACH(i, F)
    {
        vf value = vf_load(in + i);
        vu rounded = bf16_round(value);
        most = vu_max(most, vu_abs(vf_from_vu(rounded)));
        if (residual) {
            vf_store(residual + i, vf_sub(value, vf_from_vu(rounded)));
        }
        bf16_from_vu(code + i, rounded);
    }
    bool rest = vec_scalar.encode_bf16(code + i, residual ? residual + i : NULL, in + i, count - i);
    return vu_most(most) < F32_INF && rest;
}

TARGET static void encode_int8(int8_t *code, float *residual, const float *in, float scale,
                               float inverse, size_t count)
{
    vf by = vf_set(inverse), step = vf_set(scale), magic = vf_set(0x1.8p23f);
    vf top = vf_set(127.0f), bottom = vf_set(-127.0f);
    EACH(i, F)
    {
        vf value = vf_load(in + i);
        vf whole = vf_greater(vf_lesser(vf_mul(value, by), top), bottom);
        whole = vf_sub(vf_add(whole, magic), magic);
        if (residual) {
            vf_store(residual + i, vf_sub(value, vf_mul(whole, step)));
        }
        i8_from_vf(code + i, whole);
    }
    REST(i, encode_int8, code + i, residual ? residual + i : NULL, in + i, scale, inverse)
}

TARGET static void decode_int8(float *out, const int8_t *code, float scale, size_t count)
{
    vf step = vf_set(scale);
    EACH(i, F) vf_store(out + i, vf_mul(vf_from_i8(code + i), step));
    REST(i, decode_int8, out + i, code + i, scale)
}

TARGET static void axpy_int8(float *sum, const int8_t *code, float factor, size_t count)
{
    vf by = vf_set(factor);
    EACH(i, F) vf_store(sum + i, vf_add(vf_load(sum + i), vf_mul(vf_from_i8(code + i), by)));
    REST(i, axpy_int8, sum + i, code + i, factor)
}

TARGET static void outer_plain(float *anchor, const float *mean, float rate, size_t count)
{
    vf by = vf_set(rate);
    EACH(i, F) vf_store(anchor + i, vf_sub(vf_load(anchor + i), vf_mul(by, vf_load(mean + i))));
    REST(i, outer_plain, anchor + i, mean + i, rate)
}

TARGET static void outer_momentum(float *anchor, float *momentum, const float *mean,
                                  const struct vec_outer *step, size_t count)
{
    vf decay = vf_set(step->decay), gain = vf_set(step->gain), rate = vf_set(step->rate);
    vf of_delta = vf_set(step->delta), of_momentum = vf_set(step->momentum);
    size_t i = 0;
    for (; i + F <= count; i += F) {
        vf d = vf_load(mean + i);
        vf m = vf_add(vf_mul(decay, vf_load(momentum + i)), vf_mul(gain, d));
        vf change = vf_add(vf_mul(of_delta, d), vf_mul(of_momentum, m));
        vf_store(momentum + i, m);
        vf_store(anchor + i, vf_sub(vf_load(anchor + i), vf_mul(rate, change)));
    }
    if (i < count) {
        vec_scalar.outer_momentum(anchor + i, momentum + i, mean + i, step, count - i);
    }
}

/* ---- several steps of a merge in one pass ------------------------------------------------- */

#define STRIPE          16u /* floats of a digest's stripe */
#define PARTS           (STRIPE / F)
#define INLINE          TARGET static inline __attribute__((always_inline))
#define EACH_PART(part) _Pragma("GCC unroll 4") for (unsigned part = 0; part < PARTS; part++)

struct lanes {
    vg part[PARTS];
};

INLINE struct lanes lanes_load(const uint64_t *from)
{
    struct lanes lanes;
    EACH_PART(part)
    {
        lanes.part[part] = vg_load(from + 8 / PARTS * part);
    }
    return lanes;
}

INLINE void lanes_store(uint64_t *to, const struct lanes *lanes)
{
    EACH_PART(part)
    {
        vg_store(to + 8 / PARTS * part, lanes->part[part]);
    }
}

INLINE vf pass_mean(const struct vec_pass *pass, size_t i, vf anchor, bool sums)
{
    vf delta = vf_load(pass->delta + i);
    if (!sums) {
        return delta;
    }
    vf own = vf_mul(vf_set(pass->own), vf_sub(anchor, vf_load(pass->local + i)));
    vf sum = vf_add(vf_add(vf_set(0.0f), own), vf_mul(vf_set(pass->other), delta));
    vf_store(pass->mean + i, sum);
    return sum;
}

/* Both flags are known to the compiler: it makes four functions of this one. */
INLINE uint32_t pass_of(const struct vec_pass *given, size_t count, bool sums, bool moves)
{
    const struct vec_pass copy = *given, *pass = &copy; /* which no store can change */
    const struct vec_outer *outer = pass->outer;
    vf decay = vf_set(outer->decay), gain = vf_set(outer->gain), rate = vf_set(outer->rate);
    vf of_delta = vf_set(outer->delta), of_momentum = vf_set(outer->momentum);
    vf plain = vf_set(outer->rate * outer->delta);
    struct lanes means = lanes_load(pass->mean_lanes), nexts = lanes_load(pass->next_lanes);
    struct lanes momenta = moves ? lanes_load(pass->momentum_lanes) : means;
    vu most = vu_zero();
    for (size_t stripe = 0; stripe < count; stripe += STRIPE) {
        EACH_PART(part)
        {
            size_t i = stripe + F * part;
            vf anchor = vf_load(pass->anchor + i), mean = pass_mean(pass, i, anchor, sums);
            vf change = mean;
            most = vu_max(most, vu_abs(mean));
            means.part[part] = vg_step(means.part[part], vg_of(mean));
            if (moves) {
                vf m = vf_add(vf_mul(decay, vf_load(pass->momentum + i)), vf_mul(gain, mean));
                change = vf_add(vf_mul(of_delta, mean), vf_mul(of_momentum, m));
                momenta.part[part] = vg_step(momenta.part[part], vg_of(m));
                vf_stream(pass->next_momentum + i, m);
            }
            vf next = vf_sub(anchor, vf_mul(moves ? rate : plain, change));
            nexts.part[part] = vg_step(nexts.part[part], vg_of(next));
            vf_stream(pass->next + i, next);
        }
    }
    stream_end();
    lanes_store(pass->mean_lanes, &means);
    lanes_store(pass->next_lanes, &nexts);
    if (moves) {
        lanes_store(pass->momentum_lanes, &momenta);
    }
    return vu_most(most);
}

TARGET static uint32_t merge_pass(const struct vec_pass *pass, size_t count)
{
    if (pass->local) {
        return pass->momentum ? pass_of(pass, count, true, true)
                              : pass_of(pass, count, true, false);
    }
    return pass->momentum ? pass_of(pass, count, false, true) : pass_of(pass, count, false, false);
}

TARGET static uint32_t delta_most(float *out, const float *anchor, const float *local, size_t count)
{
    vu most = vu_zero();
    size_t i = 0;
    for (; i + F <= count; i += F) {
        vf difference = vf_sub(vf_load(anchor + i), vf_load(local + i));
        most = vu_max(most, vu_abs(difference));
        vf_store(out + i, difference);
    }
    uint32_t rest = vec_scalar.delta_most(out + i, anchor + i, local + i, count - i);
    uint32_t found = vu_most(most);
    return rest > found ? rest : found;
}
