/* crowd.h - whether others want the cores, seen from how long a core was away that was given away.
 *
 * Who looks again and again gives its core away between two looks, and gets it back when others have
 * used up their share; who sleeps is woken at once. So among others sleeping is better, and alone,
 * where a wake-up takes longer than most answers, it is worse. A short visit now and then (a shell, a
 * timer) is no crowd: what counts is the share of the time.
 *
 * Pure; the caller gives the times. Zero is a valid initial value. */
#ifndef SOLO_COMM_CROWD_H
#define SOLO_COMM_CROWD_H

#include <stdbool.h>
#include <stdint.h>

#define CROWD_WINDOW_US 10000u
#define CROWD_AWAY_US   2500u  /* of a window: crowded */
#define CROWD_CALM_US   50000u /* then nobody looks again and again for so long */

struct crowd {
    uint64_t window_us; /* when it began */
    uint64_t away_us;   /* in it */
    uint64_t calm_us;   /* until then */
};

/* The core was given away, and was back at `back_us`. */
void crowd_note(struct crowd *crowd, uint64_t given_us, uint64_t back_us);

static inline bool crowd_seen(const struct crowd *crowd, uint64_t now_us)
{
    return now_us < crowd->calm_us;
}

#endif
