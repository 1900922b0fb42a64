/* Eight lanes, each a polynomial hash of its words modulo a prime near 2^64: a lane is divided
 * by 2^32 modulo factor * 2^32 - 1 with each word (multiply with carry, Marsaglia 1994), for
 * which one 32-bit multiply is enough, and that every instruction set has. */
#include "kernels/digest.h"

#include <string.h>

#include "kernels/cpu.h"
#include "kernels/vec.h"

/* The final mix of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every bit reaches all. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t digest_chunk(uint64_t chunk_index, const void *bytes, size_t size)
{
    const uint64_t step = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: seeds far apart */
    uint64_t lanes[8];
    for (unsigned i = 0; i < 8; i++) {
        lanes[i] = mix(mix(chunk_index + step) + (i + 1) * step);
    }
    const struct vec *vec = cpu_vec();
    size_t whole = size / 64, rest = size % 64;
    if (whole) {
        vec->digest_stripes(lanes, bytes, whole);
    }
    if (rest) { /* the length, mixed in below, tells padding from zeros */
        uint8_t stripe[64] = {0};
        memcpy(stripe, (const uint8_t *)bytes + 64 * whole, rest);
        vec->digest_stripes(lanes, stripe, 1);
    }
    uint64_t hash = mix((uint64_t)size + step);
    for (unsigned i = 0; i < 8; i++) {
        hash = mix(hash * step + lanes[i]);
    }
    return hash;
}
