#include "kernels/outer.h"

#include <math.h>

#include "check.h"

/* f(x) = sum (x - 3)^2 / 2: its gradient step is what a member's delta is made of. */
static float distance_after(const struct vec_outer *step, bool has_momentum, int rounds)
{
    float anchor[20], momentum[20] = {0}, delta[20], worst = 0;
    for (int i = 0; i < 20; i++) {
        anchor[i] = (float)i;
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 20; i++) {
            float local = anchor[i] - 0.1f * (anchor[i] - 3.0f); /* downhill */
            delta[i] = anchor[i] - local;
        }
        outer_step(step, anchor, has_momentum ? momentum : NULL, delta, 20);
    }
    for (int i = 0; i < 20; i++) {
        worst = fmaxf(worst, fabsf(anchor[i] - 3.0f));
    }
    return worst;
}

TEST(every_outer_step_goes_downhill)
{
    struct vec_outer average = outer_average(), nesterov = outer_nesterov(0.7f, 0.9f);
    struct vec_outer slowmo = outer_slowmo(1.0f, 0.5f, 0.1f);
    CHECK(distance_after(&average, false, 1) < 15.0f &&
          distance_after(&average, false, 100) < 1e-3f);
    CHECK(distance_after(&nesterov, true, 1) < 15.0f &&
          distance_after(&nesterov, true, 200) < 1e-2f);
    CHECK(distance_after(&slowmo, true, 1) < 15.0f && distance_after(&slowmo, true, 200) < 1e-3f);
}

TEST(the_outer_steps_are_the_papers_formulas)
{
    float anchor = 2.0f, momentum = 0.5f, delta = 0.25f;
    struct vec_outer step = outer_nesterov(0.5f, 0.5f); /* exact in fp32 */
    outer_step(&step, &anchor, &momentum, &delta, 1);
    CHECK(momentum == 0.5f && anchor == 2.0f - 0.5f * (0.25f + 0.5f * 0.5f));
    anchor = 2.0f, momentum = 0.5f;
    step = outer_slowmo(1.0f, 0.5f, 0.25f);
    outer_step(&step, &anchor, &momentum, &delta, 1);
    CHECK(momentum == 1.25f && anchor == 2.0f - 0.25f * 1.25f);
    step = outer_average();
    outer_step(&step, &anchor, NULL, &delta, 1);
    CHECK(anchor == 2.0f - 0.25f * 1.25f - 0.25f);
}
