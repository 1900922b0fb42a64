#include "check.h"
#include "os/link.h"
#include "os/pace.h"

enum { WINDOW = 4 << 20 };

TEST(streams_follow_bandwidth_times_round_trip)
{
    CHECK_EQ(pace_streams(0, 1000, WINDOW), 1);
    CHECK_EQ(pace_streams(1250000000u, 200, WINDOW), 1);  /* 10 Gbit/s, 0.2 ms */
    CHECK_EQ(pace_streams(125000000u, 50000, WINDOW), 4); /* 1 Gbit/s, 50 ms */
    CHECK_EQ(pace_streams(27000000u, 100000, WINDOW), 2); /* one full window: have more */
    CHECK_EQ(pace_streams(54000000u, 100000, WINDOW), 4); /* two full windows */
    CHECK_EQ(pace_streams(12500000000u, 100000, WINDOW), LINK_STREAMS_MAX);
}

TEST(a_rate_is_measured_over_whole_windows_in_which_frames_always_wait)
{
    struct pace pace = {0};
    uint64_t second = 1000000;
    pace_rtt(&pace, 0);
    pace_rtt(&pace, 100000);
    pace_rtt(&pace, 300000); /* its own queue: not the path's */
    CHECK_EQ(pace.rtt_us, 100000);
    CHECK_EQ(pace_measure(&pace, 1 * second, 0, true, WINDOW), 0);
    CHECK_EQ(pace_measure(&pace, 1 * second + 200000, 4 << 20, true, WINDOW), 0); /* < 4 RTT */
    CHECK_EQ(pace_measure(&pace, 2 * second, 27u << 20, true, WINDOW), 2);
    CHECK_EQ(pace_measure(&pace, 3 * second, 42u << 20, false, WINDOW), 0);
    CHECK_EQ(pace_measure(&pace, 9 * second, 84u << 20, true, WINDOW), 0); /* begins anew */
}
