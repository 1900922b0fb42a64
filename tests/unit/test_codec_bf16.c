#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "codec/codec.h"

#define COUNT 40000u

static float values[COUNT], decoded[COUNT];
static uint16_t code[COUNT];

static const struct codec *bf16(void)
{
    const struct codec *codec = NULL;
    CHECK_EQ(codec_find("bf16", &codec), 0);
    return codec;
}

static int encode(size_t count, size_t *bad)
{
    struct codec_delta delta = {.anchor = values, .count = count};
    return codec_encode(bf16(), &delta, code, bad);
}

TEST(gives_the_upper_halves_rounded_to_even)
{
    float few[] = {1.0f, 1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, -2.5f, 0x1p-133f, 0.0f};
    static const uint16_t wanted[] = {0x3f80, 0x3f80, 0x3f82, 0xc020, 0x0001, 0x0000};
    size_t bad = 0;
    memcpy(values, few, sizeof few);
    CHECK_EQ(encode(6, &bad), 0);
    CHECK(memcmp(code, wanted, sizeof wanted) == 0);
}

TEST(a_value_that_rounds_to_infinity_is_refused)
{
    size_t bad = 0;
    values[0] = 0x1.fefffep127f; /* just below the middle between the largest and 2^128 */
    values[1] = -0x1.ffp127f;
    CHECK_EQ(encode(1, &bad), 0);
    CHECK_EQ(encode(2, &bad), SOLO_ENONFINITE);
    CHECK_EQ(bad, 1);
}

TEST(has_no_bias_on_a_smooth_distribution)
{
    struct rng rng = {5};
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = 0;
        for (int k = 0; k < 12; k++) {
            values[i] += (float)(rng_next(&rng) >> 40) * 0x1p-24f;
        }
        values[i] -= 6.0f;
    }
    size_t bad = 0;
    CHECK_EQ(encode(COUNT, &bad), 0);
    codec_decode(bf16(), decoded, code, COUNT);
    double mean = 0, square = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double error = (double)decoded[i] - (double)values[i];
        CHECK(fabs(error) <= fabs((double)values[i]) * 0x1p-8);
        mean += error / COUNT;
        square += error * error / COUNT;
    }
    CHECK(fabs(mean) < 3 * sqrt(square / COUNT));
}
