#include "kernels/outer.h"

#include "base/err.h"
#include "kernels/cpu.h"

struct vec_outer outer_average(void)
{
    return (struct vec_outer){.rate = 1.0f, .delta = 1.0f};
}

struct vec_outer outer_nesterov(float lr, float beta)
{
    return (struct vec_outer){
        .decay = beta, .gain = 1.0f, .rate = lr, .delta = 1.0f, .momentum = beta};
}

struct vec_outer outer_slowmo(float alpha, float beta, float gamma)
{
    return (struct vec_outer){
        .decay = beta, .gain = 1.0f / gamma, .rate = alpha * gamma, .momentum = 1.0f};
}

void outer_step(const struct vec_outer *step, float *anchor, float *momentum, const float *delta,
                size_t count)
{
    MUST(momentum || step->momentum == 0.0f);
    if (momentum) {
        cpu_vec()->outer_momentum(anchor, momentum, delta, step, count);
    } else {
        cpu_vec()->outer_plain(anchor, delta, step->rate * step->delta, count);
    }
}
