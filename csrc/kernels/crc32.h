/* crc32.h - CRC-32 of zip (reflected polynomial 0xedb88320): the table's truth and its twins.
 * solo_crc32 of solo_ckpt.h takes the one that cpu.h has chosen.
 *
 * Each takes and gives the register itself, not inverted. A twin whose instruction this processor
 * lacks, or whose input is too short for it, hands over to the one before it.
 * Threads: any, pure. */
#ifndef SOLO_KERNELS_CRC32_H
#define SOLO_KERNELS_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32_table(uint32_t value, const uint8_t *bytes, size_t size);
uint32_t crc32_clmul(uint32_t value, const uint8_t *bytes, size_t size);      /* on x86-64 */
uint32_t crc32_clmul_wide(uint32_t value, const uint8_t *bytes, size_t size); /* with AVX-512 */
uint32_t crc32_arm(uint32_t value, const uint8_t *bytes, size_t size);        /* on aarch64 */

/* Folding over 2048, 1024, 512 and 128 bits: the multipliers of a lane's two halves. */
enum crc32_distance { CRC32_2048, CRC32_1024, CRC32_512, CRC32_128, CRC32_DISTANCES };
extern uint64_t crc32_fold[CRC32_DISTANCES][2];

#endif
