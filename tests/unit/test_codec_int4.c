#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "codec/codec.h"

#define COUNT 65536u

static float values[COUNT], decoded[COUNT], left[COUNT];
static uint8_t code[COUNT];

static const struct codec *int4(void)
{
    const struct codec *codec = NULL;
    CHECK_EQ(codec_find("int4", &codec), 0);
    return codec;
}

static void round_trip(size_t count)
{
    struct codec_delta delta = {.anchor = values, .residual_out = left, .count = count};
    size_t bad = 0;
    CHECK_EQ(codec_encode(int4(), &delta, code, &bad), 0);
    CHECK_EQ(codec_check(int4(), code, codec_bytes(int4(), count), count), 0);
    codec_decode(int4(), decoded, code, count);
}

TEST(gives_the_bytes_written_down_here)
{
    float few[] = {7.0f, -7.0f, 1.5f, 2.5f, -0.6f};
    static const uint8_t wanted[] = {0, 0, 0x80, 0x3f, 0x27, 0xf9, 0x02}; /* scale 1.0 */
    memcpy(values, few, sizeof few);
    round_trip(5);
    CHECK(memcmp(code, wanted, sizeof wanted) == 0);
    CHECK(decoded[1] == -7.0f && left[2] == -0.5f);
}

TEST(every_pair_of_codes_survives)
{
    for (int a = -7; a <= 7; a++) {
        for (int b = -7; b <= 7; b++) {
            float four[] = {(float)a, (float)b, 7.0f, -7.0f};
            memcpy(values, four, sizeof four);
            round_trip(4);
            CHECK(memcmp(decoded, four, sizeof four) == 0);
        }
    }
}

TEST(has_no_bias_on_a_smooth_distribution)
{
    struct rng rng = {9};
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = -6.0f;
        for (int k = 0; k < 12; k++) {
            values[i] += (float)(rng_next(&rng) >> 40) * 0x1p-24f;
        }
    }
    round_trip(COUNT);
    double mean = 0, square = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double error = (double)decoded[i] - (double)values[i];
        mean += error / COUNT;
        square += error * error / COUNT;
    }
    fprintf(stderr, "  mean error %.2e, deviation %.4f\n", mean, sqrt(square));
    CHECK(fabs(mean) < 3 * sqrt(square / COUNT));
}

TEST(what_is_too_large_or_too_small_is_refused_or_kept_back)
{
    struct codec_delta delta = {.anchor = values, .count = 2};
    size_t bad = 0;
    values[0] = 0x1.bffffep127f; /* 7/8 of the largest */
    values[1] = FLT_MAX;
    CHECK_EQ(codec_encode(int4(), &delta, code, &bad), SOLO_ENONFINITE);
    CHECK_EQ(bad, 1);
    values[1] = 0;
    round_trip(2);
    CHECK(isfinite(decoded[0]));
    memset(code + 4, 0x88, 1); /* -8, which no encoder writes */
    codec_decode(int4(), decoded, code, 2);
    CHECK(isfinite(decoded[0]));
    values[0] = 1e-38f;
    round_trip(2);
    CHECK(decoded[0] == 0.0f && left[0] == 1e-38f);
}
