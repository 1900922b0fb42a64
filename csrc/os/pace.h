/* pace.h - how many streams a path wants, from what it was seen to carry.
 *
 * No system calls, no clock. */
#ifndef SOLO_OS_PACE_H
#define SOLO_OS_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct pace {                         /* zero: nothing measured */
    uint32_t rtt_us;                  /* the least seen: later ones hold our own queue */
    uint32_t rtt_most_us;             /* since the window began */
    uint64_t busy_us;                 /* since when frames wait; 0: none do */
    uint64_t window_us, window_bytes; /* measured so long, and what went out then */
    uint64_t looked_us, looked_bytes; /* when last; 0: not in this busy time */
};

/* The most streams that a path can need: streams * send_bytes_max >= 2.5 times bandwidth * round
 * trip; 1 to 64. */
uint32_t pace_streams(uint64_t bytes_per_s, uint32_t rtt_us, uint64_t send_bytes_max);

/* How many to begin with: what is measured on a long path comes a call or more too late. */
uint32_t pace_first_streams(const struct pace *pace);

void pace_rtt(struct pace *pace, uint32_t rtt_us); /* 0: unknown, ignored */

/* While frames wait (`busy`), what goes out is what the path takes with the streams it has. Gives
 * the streams wanted after each window of such time; 0: none has ended, or the path is full. */
uint32_t pace_measure(struct pace *pace, uint64_t now_us, uint64_t sent_bytes, bool busy,
                      uint64_t send_bytes_max, uint32_t streams);

#endif
