/* crew.h - a few threads that work off numbered items, each item once. For work that must not
 * be done on the loop thread: reading files.
 *
 * One owner thread calls everything here; `work` runs on the crew's threads. */
#ifndef SOLO_OS_CREW_H
#define SOLO_OS_CREW_H

#include <stddef.h>
#include <stdint.h>

#define CREW_THREADS_MAX 64u

/* The first error ends the work: no further item is begun. Its text is kept for crew_wait. */
typedef int (*crew_fn)(void *context, uint32_t thread, size_t item);

struct crew;
/* Starts at once. Borrows context until crew_wait returned something else than SOLO_EAGAIN. */
int crew_start(uint32_t threads, size_t items, crew_fn work, void *context, struct crew **out);
/* 0: all done. SOLO_EAGAIN: not within timeout_ms. SOLO_EABORTED: stopped. Else work's error. */
int crew_wait(struct crew *crew, uint32_t timeout_ms);
void crew_stop(struct crew *crew); /* items that are running are finished, others not begun */
void crew_free(struct crew *crew); /* stops and waits */

uint64_t crew_spent_us(void); /* processor time of the calling thread */

#endif
