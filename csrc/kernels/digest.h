/* digest.h - whether two members hold the same bytes: a 64-bit hash per chunk, keyed by the
 * chunk's index. The digest of a whole is the plain sum (modulo 2^64) of its chunks' hashes,
 * in whatever order they come. Finds accidents; is no proof against an adversary.
 *
 * Same value on every instruction set and byte order. Threads: any, pure. */
#ifndef SOLO_KERNELS_DIGEST_H
#define SOLO_KERNELS_DIGEST_H

#include <stddef.h>
#include <stdint.h>

/* The same in parts, while they are in the cache: all but the last are multiples of
 * DIGEST_PART_BYTES. */
#define DIGEST_PART_BYTES 64u
struct digest {
    uint64_t lanes[8], size;
};
void digest_begin(struct digest *digest, uint64_t chunk_index);
void digest_feed(struct digest *digest, const void *bytes, size_t size);
void digest_fed(struct digest *digest, size_t size); /* its lanes were, by a kernel */
uint64_t digest_end(const struct digest *digest);

uint64_t digest_chunk(uint64_t chunk_index, const void *bytes, size_t size);

#endif
