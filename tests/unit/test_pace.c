#include "check.h"
#include "os/link.h"
#include "os/pace.h"

enum { WINDOW = 4 << 20 };

TEST(streams_follow_bandwidth_times_round_trip)
{
    CHECK_EQ(pace_streams(0, 1000, WINDOW), 1);
    CHECK_EQ(pace_streams(1250000000u, 200, WINDOW), 1);   /* 10 Gbit/s, 0.2 ms */
    CHECK_EQ(pace_streams(125000000u, 50000, WINDOW), 4);  /* 1 Gbit/s, 50 ms */
    CHECK_EQ(pace_streams(125000000u, 100000, WINDOW), 8); /* 1 Gbit/s, 100 ms */
    CHECK_EQ(pace_streams(27000000u, 100000, WINDOW), 2);  /* one full window: have more */
    CHECK_EQ(pace_streams(54000000u, 100000, WINDOW), 4);  /* two full windows */
    CHECK_EQ(pace_streams(12500000000u, 100000, WINDOW), LINK_STREAMS_MAX);
}

TEST(a_long_path_begins_with_several_streams)
{
    struct pace pace = {0};
    CHECK_EQ(pace_first_streams(&pace), 1);
    pace_rtt(&pace, 400000);
    CHECK_EQ(pace_first_streams(&pace), 3);
    pace_rtt(&pace, 50000);
    CHECK_EQ(pace_first_streams(&pace), 2);
    pace_rtt(&pace, 1000);
    CHECK_EQ(pace_first_streams(&pace), 1);
}

/* Not what the windows take at once when it begins. */
TEST(a_rate_is_measured_from_one_round_trip_on_while_frames_wait)
{
    struct pace pace = {0};
    uint64_t second = 1000000, ms = 1000;
    pace_rtt(&pace, 0);
    pace_rtt(&pace, 100000);
    CHECK_EQ(pace.rtt_us, 100000);
    CHECK_EQ(pace_measure(&pace, second, 0, true, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, second + 1 * ms, 4 << 20, true, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, second + 100 * ms, 4 << 20, true, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, second + 160 * ms, 6 << 20, true, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, second + 200 * ms, 8 << 20, false, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, 9 * second, 16 << 20, true, WINDOW, 1), 0); /* the next call */
    CHECK_EQ(pace_measure(&pace, 9 * second + 110 * ms, 20 << 20, true, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, 9 * second + 150 * ms, 22 << 20, true, WINDOW, 1), 2);
    CHECK_EQ(pace_measure(&pace, 9 * second + 250 * ms, 25 << 20, true, WINDOW, 2), 2);
}

/* 1 Gbit/s at 100 ms is filled by three full windows, and nearly by two. */
TEST(streams_are_added_by_halves_until_the_path_has_a_queue)
{
    struct pace pace = {0};
    uint64_t second = 1000000, sent = 0;
    pace_rtt(&pace, 100000);
    CHECK_EQ(pace_measure(&pace, 1 * second, sent, true, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, 2 * second, sent, true, WINDOW, 1), 0);
    CHECK_EQ(pace_measure(&pace, 3 * second, sent += 41000000, true, WINDOW, 1), 2);
    CHECK_EQ(pace_measure(&pace, 4 * second, sent += 82000000, true, WINDOW, 2), 3);
    CHECK_EQ(pace_measure(&pace, 5 * second, sent += 122000000, true, WINDOW, 3), 5);
    pace_rtt(&pace, 160000); /* its own queue: not the path's length */
    pace_rtt(&pace, 110000);
    CHECK_EQ(pace.rtt_us, 100000);
    CHECK_EQ(pace_measure(&pace, 6 * second, sent += 125000000, true, WINDOW, 3), 0);
}
