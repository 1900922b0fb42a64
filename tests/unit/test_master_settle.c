/* What a master that was started again makes of what the members tell it. */
#include "master_kit.h"

static struct msg back(uint32_t rank, uint64_t version, uint64_t digest)
{
    struct msg msg = join_of(rank);
    struct msg_join *join = &msg.as.join;
    join->returning = join->founder = true;
    join->held = (struct msg_held){true, version, digest, 10 * version};
    join->epoch = (struct epoch){40, 3};
    join->epoch_count = 3;
    for (uint32_t i = 0; i < 3; i++) {
        join->epoch_ranks[i] = i;
    }
    return msg;
}

static struct msg doubting(uint32_t rank, uint64_t version, uint64_t digest)
{
    struct msg msg = back(rank, version, digest);
    msg.as.join.doubt = (struct round_id){{40, 3}, version + 1, 1};
    msg.as.join.doubt_digest = 99;
    return msg;
}

TEST(a_restarted_master_takes_up_the_highest_version_that_members_hold)
{
    start(1);
    say(0, back(0, 6, 66));
    say(1, back(1, 7, 77));
    CHECK_EQ(master.phase, MASTER_SETTLING);
    say(2, back(2, 7, 77));
    CHECK_EQ(master.version, 7);
    CHECK(told(EVENT_SETTLED));
    CHECK_EQ(sent(0, FRAME_CATCHUP)->as.catchup.version, 7);
    CHECK(!sent(1, FRAME_CATCHUP));
    tick(MASTER_GATHER_US);
    CHECK_EQ(last_members.listed_count, 2);
    CHECK_EQ(last_members.epoch.incarnation, 50);
}

TEST(a_restarted_master_that_meets_a_joiner_waits_for_the_members_that_it_tells_of)
{
    start(1);
    struct msg joiner = back(5, 0, 0);
    joiner.as.join.returning = joiner.as.join.founder = joiner.as.join.held.held = false;
    say(5, joiner);
    tick(MASTER_FOUND_US);
    CHECK(!sent(5, FRAME_CATCHUP)); /* no job with the joiner's values */
    say(0, back(0, 7, 77));
    say(1, back(1, 7, 77));
    say(2, back(2, 7, 77));
    CHECK_EQ(master.version, 7);
    CHECK(told(EVENT_SETTLED));
    tick(MASTER_GATHER_US);
    CHECK(sent(5, FRAME_CATCHUP));
    CHECK_EQ(sent(5, FRAME_CATCHUP)->as.catchup.version, 7);
}

TEST(an_epoch_never_comes_twice_even_if_clocks_go_back)
{
    start(1);
    struct msg msg = back(0, 1, 7);
    msg.as.join.epoch = (struct epoch){900, 3};
    say(0, msg);
    say(1, back(1, 1, 7));
    say(2, back(2, 1, 7));
    tick(MASTER_GATHER_US);
    CHECK_EQ(last_members.epoch.incarnation, 901 + 50); /* its own number on top */
}

/* It has the token, so it may say anything; a number that cannot be raised would wrap to an epoch
 * that was before. */
TEST(a_node_that_tells_of_an_impossible_master_is_refused)
{
    start(1);
    struct msg msg = back(0, 1, 7);
    msg.as.join.epoch.incarnation = UINT64_MAX - 5;
    say(0, msg);
    CHECK_EQ(sent(0, FRAME_REFUSE)->as.refuse.rc, SOLO_EPEER);
    CHECK_EQ(told(EVENT_REFUSED)->rank, 0);
    say(1, back(1, 1, 7));
    tick(MASTER_FOUND_US + 3 * 10000000);
    CHECK_EQ(last_members.epoch.incarnation, 50);
}

TEST(a_round_in_doubt_is_committed_if_all_of_its_members_had_it_whole)
{
    start(1);
    for (uint32_t i = 0; i < 3; i++) {
        say(i, doubting(i, 4, 44));
    }
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(sent(i, FRAME_COMMIT)->as.verdict.id.round, 5);
        hold(i, 5, 55);
    }
    tick(MASTER_GATHER_US);
    CHECK_EQ(master.version, 5);
    CHECK_EQ(last_members.listed_count, 3);
}

TEST(a_round_in_doubt_is_aborted_if_one_of_its_members_had_not_finished)
{
    start(1);
    say(0, doubting(0, 4, 44));
    say(1, back(1, 4, 44));
    say(2, doubting(2, 4, 44));
    CHECK(sent(0, FRAME_ABORT) && sent(2, FRAME_ABORT) && !sent(0, FRAME_COMMIT));
    CHECK_EQ(master.version, 4);
}

TEST(a_round_in_doubt_is_committed_if_one_member_heard_that_it_was)
{
    start(1);
    say(0, doubting(0, 4, 44));
    struct msg heard = back(1, 5, 55);
    heard.as.join.committed = (struct round_id){{40, 3}, 5, 1};
    say(1, heard);
    say(2, doubting(2, 4, 44));
    CHECK(sent(0, FRAME_COMMIT) && sent(2, FRAME_COMMIT));
    CHECK_EQ(master.version, 5);
}

/* The version may have been made without the doubter, by another attempt. */
TEST(a_round_in_doubt_is_aborted_if_another_attempt_made_the_version)
{
    start(1);
    say(0, doubting(0, 4, 44));
    struct msg heard = back(1, 5, 55);
    heard.as.join.committed = (struct round_id){{40, 3}, 5, 2};
    say(1, heard);
    say(2, doubting(2, 4, 44));
    CHECK(sent(0, FRAME_ABORT) && sent(2, FRAME_ABORT));
    CHECK(!sent(0, FRAME_COMMIT) && !sent(2, FRAME_COMMIT));
    CHECK_EQ(master.version, 5);
}

TEST(an_attempt_that_this_master_aborted_stays_aborted_though_all_who_heard_it_are_gone)
{
    job(2);
    all_ready(2, 0, 7);
    struct round_id id = master.round;
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 0, .text = "cut"});
    CHECK(sent(1, FRAME_ABORT));
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 1, .text = "dead"});
    CHECK_EQ(master.phase, MASTER_SETTLING);
    struct msg msg = back(0, 0, 7);
    msg.as.join.epoch = id.epoch;
    msg.as.join.epoch_count = 1;
    msg.as.join.doubt = id;
    msg.as.join.doubt_digest = 99;
    say(2, msg);
    for (uint32_t i = 0; i < 40 && master.phase == MASTER_SETTLING; i++) {
        tick(1000000);
        say(2, (struct msg){.type = FRAME_HEARTBEAT});
    }
    CHECK(sent(2, FRAME_ABORT) && !sent(2, FRAME_COMMIT));
    CHECK_EQ(master.version, 0);
}

TEST(fewer_than_most_of_the_last_members_wait_longer)
{
    start(1);
    say(0, back(0, 4, 44));
    for (uint32_t i = 0; i < 12; i++) {
        tick(1000000);
        say(0, (struct msg){.type = FRAME_HEARTBEAT});
    }
    CHECK_EQ(master.phase, MASTER_SETTLING);
    say(1, back(1, 4, 44)); /* now most of them */
    CHECK_EQ(master.phase, MASTER_BETWEEN);
}

TEST(a_fresh_process_with_the_rank_proves_that_the_old_one_is_dead)
{
    start(1);
    say(0, back(0, 4, 44));
    say(1, join_of(1));
    say(2, join_of(2));
    CHECK_EQ(master.phase, MASTER_BETWEEN);
    CHECK_EQ(sent(1, FRAME_CATCHUP)->as.catchup.version, 4);
}

TEST(a_member_that_comes_back_with_a_later_version_is_believed)
{
    job(2);
    all_ready(2, 0, 7);
    clear();
    say(5, back(5, 9, 99));
    CHECK(sent(0, FRAME_ABORT));
    CHECK_EQ(master.version, 9);
    CHECK_EQ(sent(0, FRAME_CATCHUP)->as.catchup.version, 9);
    tick(MASTER_GATHER_US);
    CHECK_EQ(last_members.listed_count, 1);
    CHECK_EQ(last_members.rows[0].identity.node_rank, 5);
}
