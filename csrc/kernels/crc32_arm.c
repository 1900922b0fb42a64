/* crc32_arm.c - CRC-32 by the instruction for it, which ARMv8.0 may lack and all later ones have. */
#include "kernels/crc32.h"

#if defined(__aarch64__)
#include <arm_acle.h>
#include <string.h>
#include <sys/auxv.h>

#define HAS_CRC32 (1ul << 7) /* HWCAP_CRC32 */

__attribute__((target("+crc"))) static uint32_t by_instruction(uint32_t value, const uint8_t *bytes,
                                                               size_t size)
{
    for (; size >= 8; bytes += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        value = __crc32d(value, word);
    }
    for (; size; bytes++, size--) {
        value = __crc32b(value, *bytes);
    }
    return value;
}

uint32_t crc32_arm(uint32_t value, const uint8_t *bytes, size_t size)
{
    return getauxval(AT_HWCAP) & HAS_CRC32 ? by_instruction(value, bytes, size)
                                           : crc32_table(value, bytes, size);
}
#endif
