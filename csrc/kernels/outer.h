/* outer.h - the outer step as coefficients of vec.h's one formula.
 *
 *   m <- decay * m + gain * d;   anchor <- anchor - rate * (delta * d + momentum * m)
 *
 * Members calculate them from the same float bits with + - * / alone, so they get the same
 * coefficients. Threads: any, pure. */
#ifndef SOLO_KERNELS_OUTER_H
#define SOLO_KERNELS_OUTER_H

#include <stdbool.h>

#include "kernels/vec.h"

/* anchor <- anchor - d: averaging. Needs no momentum buffer. */
struct vec_outer outer_average(void);
/* m <- beta m + d; anchor <- anchor - lr (d + beta m): DiLoCo, arXiv:2311.08105. */
struct vec_outer outer_nesterov(float lr, float beta);
/* u <- beta u + d / gamma; anchor <- anchor - alpha gamma u: SlowMo, arXiv:1910.00643;
 * gamma > 0 is the current inner learning rate. */
struct vec_outer outer_slowmo(float alpha, float beta, float gamma);

/* Takes the step on `count` elements. momentum may be NULL if step->momentum is 0. */
void outer_step(const struct vec_outer *step, float *anchor, float *momentum, const float *delta,
                size_t count);

#endif
