/* clock.h - the two clocks: one to wait by, one to write down.
 *
 * Any thread. Deadlines everywhere in this room are absolute values of clock_us. */
#ifndef SOLO_OS_CLOCK_H
#define SOLO_OS_CLOCK_H

#include <stddef.h>
#include <stdint.h>

#define CLOCK_NEVER UINT64_MAX /* a deadline that does not come */

uint64_t clock_us(void);      /* monotonic, since some start; does not run while suspended */
uint64_t clock_wall_us(void); /* since 1970; may jump: for logs alone */

/* Milliseconds left until the deadline, rounded up, 0 to INT_MAX; -1 for CLOCK_NEVER. What
 * poll and epoll_wait want. */
int clock_left_ms(uint64_t deadline_us, uint64_t now_us);

void clock_sleep_until(uint64_t deadline_us);

#endif
