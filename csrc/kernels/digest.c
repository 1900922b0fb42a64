/* Eight lanes, each a polynomial hash of its words modulo a prime near 2^64: a lane is divided
 * by 2^32 modulo factor * 2^32 - 1 with each word (multiply with carry, Marsaglia 1994), for
 * which one 32-bit multiply is enough, and that every instruction set has. */
#include "kernels/digest.h"

#include <string.h>

#include "base/err.h"
#include "kernels/cpu.h"
#include "kernels/vec.h"

/* The final mix of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every bit reaches all. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#define STEP UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio: seeds far apart */

void digest_begin(struct digest *digest, uint64_t chunk_index)
{
    digest->size = 0;
    for (unsigned i = 0; i < 8; i++) {
        digest->lanes[i] = mix(mix(chunk_index + STEP) + (i + 1) * STEP);
    }
}

void digest_feed(struct digest *digest, const void *bytes, size_t size)
{
    const struct vec *vec = cpu_vec();
    size_t whole = size / DIGEST_PART_BYTES, rest = size % DIGEST_PART_BYTES;
    MUST(digest->size % DIGEST_PART_BYTES == 0);
    digest->size += size;
    if (whole) {
        vec->digest_stripes(digest->lanes, bytes, whole);
    }
    if (rest) { /* the length, mixed in at the end, tells padding from zeros */
        uint8_t stripe[DIGEST_PART_BYTES] = {0};
        memcpy(stripe, (const uint8_t *)bytes + DIGEST_PART_BYTES * whole, rest);
        vec->digest_stripes(digest->lanes, stripe, 1);
    }
}

void digest_fed(struct digest *digest, size_t size)
{
    MUST(digest->size % DIGEST_PART_BYTES == 0 && size % DIGEST_PART_BYTES == 0);
    digest->size += size;
}

uint64_t digest_end(const struct digest *digest)
{
    uint64_t hash = mix(digest->size + STEP);
    for (unsigned i = 0; i < 8; i++) {
        hash = mix(hash * STEP + digest->lanes[i]);
    }
    return hash;
}

uint64_t digest_chunk(uint64_t chunk_index, const void *bytes, size_t size)
{
    struct digest digest;
    digest_begin(&digest, chunk_index);
    digest_feed(&digest, bytes, size);
    return digest_end(&digest);
}
