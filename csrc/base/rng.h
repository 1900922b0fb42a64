/* rng.h - a small seeded generator (SplitMix64, Steele, Lea and Flood, OOPSLA 2014) for
 * jitter, tests and the simulator; never for secrets. */
#ifndef SOLO_BASE_RNG_H
#define SOLO_BASE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state; /* any value is a seed */
};

static inline uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A value in [0, bound), bound > 0; the bias of the multiply is below bound / 2^32. */
static inline uint32_t rng_below(struct rng *rng, uint32_t bound)
{
    return (uint32_t)(((rng_next(rng) >> 32) * bound) >> 32);
}

#endif
