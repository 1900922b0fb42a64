/* core.h - which core a thread runs on, and how it gets off one.
 *
 * Any thread, for itself. */
#ifndef SOLO_OS_CORE_H
#define SOLO_OS_CORE_H

#include <stdint.h>

int32_t core_here(void); /* -1: not known */

/* Moves this thread to a core that is none of these, if it may run on one; it may then run wherever
 * it might before. SOLO_ENOTSUP: there is none. */
int core_leave(const int32_t *cores, uint32_t count);

#endif
