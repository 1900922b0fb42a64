#include "comm/crowd.h"

/* An answer from a rank on the same core takes a few microseconds of it, which is no one else's. */
#define SHORT_US 50u

void crowd_note(struct crowd *crowd, uint64_t given_us, uint64_t back_us)
{
    if (back_us - given_us < SHORT_US) {
        return;
    }
    if (given_us - crowd->window_us > CROWD_WINDOW_US) {
        crowd->window_us = given_us;
        crowd->away_us = 0;
    }
    crowd->away_us += back_us - given_us;
    if (crowd->away_us > CROWD_AWAY_US) {
        crowd->calm_us = back_us + CROWD_CALM_US;
        crowd->window_us = crowd->away_us = 0;
    }
}
