#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "codec/codec.h"

#define COUNT 65536u

static float values[COUNT], decoded[COUNT], left[COUNT];
static uint8_t code[COUNT + COUNT / 64];

static const struct codec *int8(void)
{
    const struct codec *codec = NULL;
    CHECK_EQ(codec_find("int8", &codec), 0);
    return codec;
}

static void round_trip(size_t count)
{
    struct codec_delta delta = {.anchor = values, .residual_out = left, .count = count};
    size_t bad = 0;
    CHECK_EQ(codec_encode(int8(), &delta, code, &bad), 0);
    CHECK_EQ(codec_check(int8(), code, codec_bytes(int8(), count), count), 0);
    codec_decode(int8(), decoded, code, count);
}

static void normal_values(void) /* Box and Muller */
{
    struct rng rng = {42};
    for (size_t i = 0; i < COUNT; i += 2) {
        double radius = sqrt(-2.0 * log(((double)(rng_next(&rng) >> 11) + 1.0) * 0x1p-53));
        double angle = 6.283185307179586 * (double)(rng_next(&rng) >> 11) * 0x1p-53;
        values[i] = (float)(radius * cos(angle));
        values[i + 1] = (float)(radius * sin(angle));
    }
}

TEST(gives_the_bytes_written_down_here)
{
    float few[] = {127.0f, -127.0f, 1.5f, 2.5f, -0.4f, 0.0f};
    static const uint8_t wanted[] = {0, 0, 0x80, 0x3f, 127, 0x81, 2, 2, 0, 0}; /* scale 1.0 */
    memcpy(values, few, sizeof few);
    round_trip(6);
    CHECK(memcmp(code, wanted, sizeof wanted) == 0);
    CHECK(left[2] == -0.5f && left[3] == 0.5f && left[0] == 0.0f);
}

/* The error of rounding is uniform within half a step: mean 0, deviation step / sqrt(12). */
TEST(has_no_bias_on_a_normal_distribution)
{
    normal_values();
    round_trip(COUNT);
    double mean = 0, square = 0, worst = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double error = (double)decoded[i] - (double)values[i];
        mean += error / COUNT;
        square += error * error / COUNT;
        worst = fmax(worst, fabs(error));
    }
    double standard_error = sqrt(square / COUNT);
    fprintf(stderr, "  mean error %.2e, standard error %.2e, largest %.4f\n", mean, standard_error,
            worst);
    CHECK(fabs(mean) < 3 * standard_error);
    CHECK(worst < 5.0 / 127 / 2);
}

TEST(constant_and_all_negative_blocks_lose_nothing_but_rounding)
{
    static const float constants[] = {1.0f, -1.0f, -3.7e-5f, 1e-20f, -1e20f};
    for (size_t k = 0; k < sizeof constants / sizeof *constants; k++) {
        for (size_t i = 0; i < 300; i++) {
            values[i] = constants[k];
        }
        round_trip(300);
        for (size_t i = 0; i < 300; i++) {
            CHECK(fabsf(decoded[i] - values[i]) <= fabsf(values[i]) * 1e-6f);
        }
    }
    for (size_t i = 0; i < 300; i++) {
        values[i] = -1.0f - (float)i / 300.0f;
    }
    round_trip(300);
    for (size_t i = 0; i < 300; i++) {
        CHECK(fabsf(decoded[i] - values[i]) <= 2.0f / 254.0f * 1.0001f);
    }
}

TEST(a_block_too_small_for_a_scale_stays_in_the_residual)
{
    static const float small[] = {0.0f, 1e-45f, -1e-38f, 1e-31f};
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < 256; i++) {
            values[i] = small[k];
        }
        round_trip(256);
        for (size_t i = 0; i < 256; i++) {
            CHECK(decoded[i] == 0.0f && left[i] == values[i]);
        }
    }
}

TEST(the_largest_floats_stay_finite)
{
    for (size_t i = 0; i < 256; i++) {
        values[i] = i % 2 ? FLT_MAX : -FLT_MAX;
    }
    round_trip(256);
    for (size_t i = 0; i < 256; i++) {
        CHECK(isfinite(decoded[i]));
        CHECK(fabsf(decoded[i] - values[i]) < 0.01f * FLT_MAX);
    }
    memset(code + 4, 0x80, 256); /* -128, which no encoder writes */
    codec_decode(int8(), decoded, code, 256);
    CHECK(isfinite(decoded[0]));
}

TEST(one_outlier_costs_its_own_block_alone)
{
    normal_values();
    values[300] = 1e4f;
    round_trip(1024);
    CHECK(fabsf(decoded[0] - values[0]) < 0.02f);
    CHECK(fabsf(decoded[600] - values[600]) < 0.02f);
    CHECK(fabsf(decoded[300] - 1e4f) < 0.01f);
}

TEST(scales_that_are_no_scales_are_a_peers_fault)
{
    static const uint32_t scales[] = {0x7fc00000, 0x7f800000, 0xff800000, 0xbf800000, 0x7f000000};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        memset(code, 1, sizeof code);
        memcpy(code, &scales[i], 4);
        CHECK_EQ(codec_check(int8(), code, 104, 100), SOLO_EPEER);
    }
}
