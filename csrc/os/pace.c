#include "os/pace.h"

/* At least so long is a rate measured for: below, start-up and luck dominate. */
enum { WINDOW_US = 100000, WINDOW_RTTS = 4, STREAMS_MAX = 64 };

/* About half of what the kernel lets a stream have in flight is its own bookkeeping (one stream
 * at a round trip of 100 ms carries 2.7 MB of a limit of 4 MiB), so twice the rate is the least;
 * a quarter more lets a rate that the windows themselves limit ask for more of them. Not more: what
 * is in flight beyond the path's own bytes fills its queue, and at four times the rate the queue
 * overflowed (50 ms, 1 Gbit/s: 64 MiB took 0.6 to 1.2 s, and 0.6 s with fewer streams). */
uint32_t pace_streams(uint64_t bytes_per_s, uint32_t rtt_us, uint64_t send_bytes_max)
{
    double in_flight = 2.5 * (double)bytes_per_s * rtt_us / 1e6;
    double streams = in_flight / (double)send_bytes_max;
    if (streams >= STREAMS_MAX) {
        return STREAMS_MAX;
    }
    uint32_t whole = (uint32_t)streams;
    return whole < streams || whole == 0 ? whole + 1 : whole;
}

void pace_rtt(struct pace *pace, uint32_t rtt_us)
{
    if (rtt_us > 0 && (pace->rtt_us == 0 || rtt_us < pace->rtt_us)) {
        pace->rtt_us = rtt_us;
    }
}

uint32_t pace_measure(struct pace *pace, uint64_t now_us, uint64_t sent_bytes, bool busy,
                      uint64_t send_bytes_max)
{
    if (!busy) {
        pace->window_start_us = 0;
        return 0;
    }
    uint64_t window_us = now_us - pace->window_start_us;
    if (pace->window_start_us > 0 &&
        (window_us < WINDOW_US || window_us < (uint64_t)WINDOW_RTTS * pace->rtt_us)) {
        return 0;
    }
    bool ended = pace->window_start_us > 0;
    uint64_t rate = ended ? (sent_bytes - pace->window_start_bytes) * 1000000u / window_us : 0;
    pace->window_start_us = now_us;
    pace->window_start_bytes = sent_bytes;
    return ended ? pace_streams(rate, pace->rtt_us, send_bytes_max) : 0;
}
