#include "os/pace.h"

/* At least so long is a rate measured for: below, luck dominates. One call may be over sooner, so
 * that the time of several is put together. */
enum { WINDOW_US = 100000, STREAMS_MAX = 64, SLACK_US = 1000 };
enum { FIRST_STREAM_US = 40000, FIRST_STREAMS_MAX = 3 };

/* Of what the kernel lets a stream have in flight its own bookkeeping takes some: one stream at a
 * round trip of 100 ms was seen to carry from 2.7 to 4.1 MB of a limit of 4 MiB. So twice the rate
 * is the least, and a quarter more lets a rate that the windows limit ask for more of them. Less
 * (1.6 times) gave five streams at 1 Gbit/s and 100 ms, and 0.85 of the line instead of 0.98. */
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

/* Each stream begins with a small window, so several also reach a long path's rate sooner. Three
 * full windows of 4 MiB fill 1 Gbit/s at 100 ms; what is slower has congestion control. */
uint32_t pace_first_streams(const struct pace *pace)
{
    uint32_t streams = 1 + pace->rtt_us / FIRST_STREAM_US;
    return streams < FIRST_STREAMS_MAX ? streams : FIRST_STREAMS_MAX;
}

void pace_rtt(struct pace *pace, uint32_t rtt_us)
{
    if (rtt_us > 0 && (pace->rtt_us == 0 || rtt_us < pace->rtt_us)) {
        pace->rtt_us = rtt_us;
    }
    pace->rtt_most_us = rtt_us > pace->rtt_most_us ? rtt_us : pace->rtt_most_us;
}

/* A round trip that has grown by half is the path's queue, and more in flight would only lengthen
 * that. */
static bool path_is_full(const struct pace *pace)
{
    uint32_t slack_us = pace->rtt_us / 2 > SLACK_US ? pace->rtt_us / 2 : SLACK_US;
    return pace->rtt_most_us > pace->rtt_us + slack_us;
}

/* Half as many more at a time: what is too many is never taken back. */
static uint32_t some_more(const struct pace *pace, uint32_t streams, uint32_t most)
{
    uint32_t more = path_is_full(pace) ? 0 : streams + (streams + 1) / 2;
    return more < most ? more : most;
}

uint32_t pace_measure(struct pace *pace, uint64_t now_us, uint64_t sent_bytes, bool busy,
                      uint64_t send_bytes_max, uint32_t streams)
{
    if (!busy) {
        pace->busy_us = pace->looked_us = 0;
        return 0;
    }
    pace->busy_us = pace->busy_us ? pace->busy_us : now_us;
    if (now_us - pace->busy_us < pace->rtt_us) { /* what goes out at first only fills windows */
        return 0;
    }
    if (pace->looked_us) {
        pace->window_us += now_us - pace->looked_us;
        pace->window_bytes += sent_bytes - pace->looked_bytes;
    }
    pace->looked_us = now_us;
    pace->looked_bytes = sent_bytes;
    if (pace->window_us < WINDOW_US || pace->window_us < pace->rtt_us) {
        return 0;
    }
    uint64_t rate = pace->window_bytes * 1000000u / pace->window_us;
    uint32_t wanted = some_more(pace, streams, pace_streams(rate, pace->rtt_us, send_bytes_max));
    pace->window_us = pace->window_bytes = pace->rtt_most_us = 0;
    return wanted;
}
