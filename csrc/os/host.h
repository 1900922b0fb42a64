/* host.h - what this process may know of the machine it runs on. Any thread. */
#ifndef SOLO_OS_HOST_H
#define SOLO_OS_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "solo.h"

#define HOST_BOOT_ID_BYTES 16u

void host_name(char *out, size_t size); /* never empty */

/* The kernel's boot id: equal on two processes = one kernel. SOLO_ENOTSUP where it is hidden;
 * then `out` is random, so equal to nobody's. */
int host_boot_id(uint8_t out[HOST_BOOT_ID_BYTES]);

uint64_t host_pid(void);

uint32_t host_processors(void); /* that this process may run on; at least 1 */
uint32_t host_cores(void);      /* the same, cut by the control group's quota */

/* Random bytes fit for secrets. SOLO_ESYS if the kernel has none: never a weaker source. */
int host_random(void *out, size_t size);

#endif
