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

/* Spins at most spin_us, then sleeps, until *word != expected: 0, or SOLO_ETIMEDOUT. Spins not
 * at all when spin_us is 0: right where there are more waiters than cores. */
int futex_wait_change(_Atomic uint32_t *word, uint32_t expected, uint32_t spin_us,
                      uint64_t deadline_us);

#endif
