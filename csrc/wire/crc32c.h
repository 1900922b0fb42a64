/* crc32c.h - the checksum of frames: CRC-32C (Castagnoli, reflected 0x82F63B78, as in iSCSI,
 * RFC 3720), by the processor's own instruction where it has one.
 *
 * Threads: any, pure. Alignment: any. */
#ifndef SOLO_WIRE_CRC32C_H
#define SOLO_WIRE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of `size` bytes after those that gave `crc`; 0 begins. So
 * crc32c(crc32c(0, a, n), b, m) is the checksum of a followed by b. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t size);

/* The plain table loop that crc32c must equal. */
uint32_t crc32c_truth(uint32_t crc, const void *bytes, size_t size);

#endif
