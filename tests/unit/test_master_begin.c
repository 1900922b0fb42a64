/* With whose values a job begins, and when. */
#include "master_kit.h"

TEST(a_job_begins_with_the_values_of_the_lowest_rank)
{
    job(3);
    CHECK_EQ(master.phase, MASTER_BETWEEN);
    CHECK_EQ(last_members.rows[0].identity.node_rank, 0);
    CHECK(last_members.rows[2].founder);
}

TEST(a_new_job_waits_for_node_0_to_begin_with_its_values)
{
    start(1);
    master.config.first_us = 30000000;
    say(1, join_of(1));
    tick(MASTER_FOUND_US);
    CHECK(!sent(1, FRAME_CATCHUP));
    tick(MASTER_FOUND_US);
    say(0, join_of(0));
    CHECK(sent(0, FRAME_CATCHUP));
    CHECK(!sent(1, FRAME_CATCHUP));
}

TEST(a_new_job_begins_without_node_0_when_that_has_had_its_time)
{
    start(1);
    master.config.first_us = 5000000;
    tick(MASTER_FOUND_US); /* the time runs from the first node's coming */
    say(1, join_of(1));
    tick(0);
    CHECK_EQ(out.wake_us, now_us + 5000000);
    tick(4999999);
    CHECK(!sent(1, FRAME_CATCHUP));
    tick(1);
    CHECK(sent(1, FRAME_CATCHUP));
}

TEST(a_job_that_has_begun_does_not_wait_for_node_0_again)
{
    job(2);
    all_ready(2, 0, 7);
    master.config.first_us = 600000000;
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 0, .text = "killed"});
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 1, .text = "killed"});
    clear();
    say(5, join_of(5));
    for (uint32_t i = 0; i < 5; i++) { /* those who held the job may come back, for a while */
        tick(9000000);
        say(5, (struct msg){.type = FRAME_HEARTBEAT});
    }
    CHECK(sent(5, FRAME_CATCHUP));
}

TEST(what_node_0_began_with_is_waited_for_again_if_it_dies_before_anybody_has_fetched_it)
{
    start(1);
    master.config.first_us = 600000000;
    say(0, join_of(0));
    say(1, join_of(1));
    tick(MASTER_FOUND_US);
    hold(0, 0, 7);
    CHECK(sent(1, FRAME_CATCHUP)); /* it fetches */
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 0, .text = "killed"});
    clear();
    say(1, (struct msg){.type = FRAME_CAUGHT_UP, .as.caught_up = {.text = "it is gone"}});
    for (uint32_t i = 0; i < 9; i++) {
        tick(9000000);
        say(1, (struct msg){.type = FRAME_HEARTBEAT});
    }
    CHECK(!sent(1, FRAME_CATCHUP));
    say(2, join_of(0));
    tick(MASTER_FOUND_US);
    CHECK(sent(2, FRAME_CATCHUP)->as.catchup.own);
}

TEST(a_master_whose_node_0_dies_while_it_begins_wakes_to_begin_without_it)
{
    start(1);
    master.config.first_us = 8000000; /* sooner than a lease ends */
    say(1, join_of(1));
    say(0, join_of(0));
    tick(MASTER_FOUND_US);
    CHECK(sent(0, FRAME_CATCHUP));
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 0, .text = "killed"});
    CHECK(!sent(1, FRAME_CATCHUP));
    CHECK_EQ(out.wake_us, 1000000 + 8000000);
    now_us = out.wake_us;
    tick(0);
    CHECK(sent(1, FRAME_CATCHUP));
}

TEST(nothing_begins_before_min_nodes_are_there)
{
    start(2);
    say(0, join_of(0));
    tick(MASTER_FOUND_US);
    CHECK(!sent(0, FRAME_CATCHUP));
    say(1, join_of(1));
    CHECK(sent(0, FRAME_CATCHUP));
}
