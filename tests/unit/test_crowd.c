#include "check.h"
#include "comm/crowd.h"

enum { START_US = 5000000 };

TEST(a_short_visit_now_and_then_is_no_crowd)
{
    struct crowd crowd = {0};
    CHECK(!crowd_seen(&crowd, START_US));
    for (uint64_t at_us = START_US; at_us < START_US + 1000000; at_us += 5000) {
        crowd_note(&crowd, at_us, at_us + 800);
        CHECK(!crowd_seen(&crowd, at_us + 800));
    }
}

TEST(who_takes_its_whole_share_is_a_crowd_for_a_while)
{
    struct crowd crowd = {0};
    crowd_note(&crowd, START_US, START_US + CROWD_AWAY_US + 1);
    CHECK(crowd_seen(&crowd, START_US + CROWD_AWAY_US + 2));
    CHECK(!crowd_seen(&crowd, START_US + CROWD_AWAY_US + 1 + CROWD_CALM_US));
}

TEST(many_visits_in_a_short_time_are_a_crowd)
{
    struct crowd crowd = {0};
    uint64_t at_us = START_US;
    for (; !crowd_seen(&crowd, at_us); at_us += 1500) {
        CHECK(at_us < START_US + CROWD_WINDOW_US);
        crowd_note(&crowd, at_us, at_us + 1000);
    }
}

TEST(an_answer_of_a_rank_on_the_same_core_is_no_visit)
{
    struct crowd crowd = {0};
    for (uint64_t at_us = START_US; at_us < START_US + 100000; at_us += 20) {
        crowd_note(&crowd, at_us, at_us + 19);
        CHECK(!crowd_seen(&crowd, at_us + 19));
    }
}
