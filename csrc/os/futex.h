/* futex.h - sleep on a word of shared memory until somebody changes it.
 *
 * Any thread, any process that maps the word. */
#ifndef SOLO_OS_FUTEX_H
#define SOLO_OS_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleeps while *word == expected, until woken (0, also if it differed at once) or until the
 * deadline (SOLO_ETIMEDOUT). A wake-up may be early: look at the word again. */
int futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_us);
void futex_wake(_Atomic uint32_t *word, uint32_t count); /* UINT32_MAX: all */

#endif
