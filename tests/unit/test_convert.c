#include "kernels/convert.h"

#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "kernels/half.h"

static uint8_t encoded(float value, enum solo_dtype dtype)
{
    uint8_t byte;
    convert_from_f32(&byte, &value, dtype, 1);
    return byte;
}

static void decode_all(float values[256], enum solo_dtype dtype)
{
    uint8_t bytes[256];
    for (unsigned i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
    }
    convert_to_f32(values, bytes, dtype, 256);
    for (unsigned i = 0; i < 256; i++) { /* short arrays take another way */
        float one;
        convert_to_f32(&one, &bytes[i], dtype, 1);
        CHECK(memcmp(&one, &values[i], sizeof one) == 0);
    }
}

/* sign, exponent, mantissa by the formula of the format. */
static double by_formula(unsigned byte, int mantissa_bits, int bias)
{
    unsigned code = byte & 0x7f, exponent = code >> mantissa_bits;
    unsigned mantissa = code & ((1u << mantissa_bits) - 1);
    double one = ldexp(1.0, mantissa_bits);
    double value = exponent ? ldexp((one + mantissa) / one, (int)exponent - bias)
                            : ldexp(mantissa / one, 1 - bias);
    return byte & 0x80 ? -value : value;
}

static const struct {
    enum solo_dtype dtype;
    int mantissa, bias;
    unsigned largest;
} kinds[] = {
    {SOLO_F8E4M3, 3, 7, 0x7e},
    {SOLO_F8E5M2, 2, 15, 0x7b},
    {SOLO_F8E4M3Z, 3, 8, 0x7f},
    {SOLO_F8E5M2Z, 2, 16, 0x7f},
};

TEST(every_8_bit_float_has_the_value_of_its_formula)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        float values[256];
        decode_all(values, kinds[k].dtype);
        for (unsigned i = 0; i < 256; i++) {
            bool minus_zero_is_nan = kinds[k].bias % 8 == 0 && i == 0x80; /* fnuz */
            if ((i & 0x7f) <= kinds[k].largest && !minus_zero_is_nan) {
                CHECK((double)values[i] == by_formula(i, kinds[k].mantissa, kinds[k].bias));
                CHECK_EQ(encoded(values[i], kinds[k].dtype), i);
            } else {
                CHECK(!isfinite(values[i]));
            }
        }
    }
}

/* The oracle: the nearest of all values, the even code of two that are as near. */
static unsigned nearest(const float values[256], float value, unsigned largest)
{
    unsigned best = 0;
    for (unsigned i = 1; i <= largest; i++) {
        double here = fabs((double)values[i] - (double)value);
        double there = fabs((double)values[best] - (double)value);
        if (here < there || (here == there && i % 2 == 0)) {
            best = i;
        }
    }
    return best;
}

TEST(an_8_bit_float_is_the_nearest_one)
{
    struct rng rng = {7};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        float values[256];
        decode_all(values, kinds[k].dtype);
        for (int i = 0; i < 4000; i++) {
            unsigned near = rng_below(&rng, kinds[k].largest);
            float share = (float)rng_below(&rng, 9) / 8.0f; /* 4/8 is a tie */
            float value = values[near] + share * (values[near + 1] - values[near]);
            CHECK_EQ(encoded(value, kinds[k].dtype), nearest(values, value, kinds[k].largest));
        }
    }
}

TEST(what_an_8_bit_float_cannot_hold_becomes_what_torch_makes_of_it)
{
    CHECK_EQ(encoded(1e6f, SOLO_F8E4M3), 0x7e);
    CHECK_EQ(encoded(-INFINITY, SOLO_F8E4M3), 0xfe);
    CHECK_EQ(encoded(NAN, SOLO_F8E4M3), 0x7f);
    CHECK_EQ(encoded(1e6f, SOLO_F8E5M2), 0x7c);
    CHECK_EQ(encoded(1e6f, SOLO_F8E4M3Z), 0x80);
    CHECK_EQ(encoded(-1e6f, SOLO_F8E5M2Z), 0x80);
    CHECK_EQ(encoded(-0.0f, SOLO_F8E4M3), 0x80);
    CHECK_EQ(encoded(-0.0f, SOLO_F8E4M3Z), 0x00);
    CHECK_EQ(encoded(-1e-30f, SOLO_F8E5M2Z), 0x00);
}

TEST(scales_are_powers_of_two)
{
    float values[256];
    decode_all(values, SOLO_F8E8M0);
    for (unsigned i = 0; i < 255; i++) {
        CHECK((double)values[i] == ldexp(1.0, (int)i - 127));
    }
    CHECK(isnan(values[255]));
    CHECK_EQ(encoded(1.0f, SOLO_F8E8M0), 127);
    CHECK_EQ(encoded(3.5f, SOLO_F8E8M0), 129);
}

TEST(integers_go_to_int64_and_back)
{
    int8_t small[] = {-128, -1, 0, 127}, small_back[4];
    uint16_t middle[] = {0, 1, 65535, 4}, middle_back[4];
    uint8_t flags[] = {0, 1, 7, 255}, flags_back[4];
    int64_t wide[4];
    convert_to_i64(wide, small, SOLO_I8, 4);
    CHECK_EQ(wide[0], -128);
    convert_from_i64(small_back, wide, SOLO_I8, 4);
    CHECK(memcmp(small, small_back, sizeof small) == 0);
    convert_to_i64(wide, middle, SOLO_U16, 4);
    CHECK_EQ(wide[2], 65535);
    convert_from_i64(middle_back, wide, SOLO_U16, 4);
    CHECK(memcmp(middle, middle_back, sizeof middle) == 0);
    convert_to_i64(wide, flags, SOLO_BOOL, 4);
    CHECK_EQ(wide[3], 1);
    wide[0] = -5;
    convert_from_i64(flags_back, wide, SOLO_BOOL, 4);
    CHECK_EQ(flags_back[0], 1);
}
