/* nic.h - the address of this host that a user's choice of interfaces means.
 *
 * Any thread. */
#ifndef SOLO_OS_NIC_H
#define SOLO_OS_NIC_H

#include <stddef.h>

/* `choice`: interface names or their beginnings ("eth", "solo0"), numeric addresses of this host,
 * or ^names to leave out, comma-separated, the first that fits. SOLO_ENOENT: none fits; the text
 * lists what there is. Loopback only if it is named. */
int nic_address(const char *choice, char *out, size_t size);

#endif
