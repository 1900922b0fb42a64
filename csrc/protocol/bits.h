/* bits.h - sets of small numbers in bytes. */
#ifndef SOLO_PROTOCOL_BITS_H
#define SOLO_PROTOCOL_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool bit_is(const uint8_t *bits, uint64_t at)
{
    return bits[at / 8] >> (at % 8) & 1;
}

static inline void bit_set(uint8_t *bits, uint64_t at)
{
    bits[at / 8] = (uint8_t)(bits[at / 8] | 1u << (at % 8));
}

#endif
