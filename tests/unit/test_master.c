#include "master_kit.h"

TEST(a_round_goes_from_ready_to_one_commit_for_all)
{
    job(3);
    all_ready(3, 0, 7);
    const struct msg_begin *begin = &sent(2, FRAME_BEGIN)->as.begin;
    CHECK_EQ(begin->count, 3);
    CHECK_EQ(begin->weights[1], 40);
    CHECK(begin->lr_sum == 0.5 && begin->steps == 10);
    CHECK_EQ(begin->job_step, 10);
    done(0, 99, 1);
    done(1, 99, 2);
    CHECK(!sent(0, FRAME_COMMIT));
    done(2, 99, 3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(sent(i, FRAME_COMMIT)->as.verdict.mean_digest, 99);
    }
    CHECK_EQ(told(EVENT_COMMITTED)->contributor_count, 3);
    CHECK_EQ(master.version, 1);
    CHECK(!told(EVENT_TWINS));
}

TEST(a_commit_tells_how_long_its_phases_took)
{
    job(2);
    ready(0, 0, 7, 40);
    tick(300);
    ready(1, 0, 7, 40);
    tick(2000);
    done(0, 99, 1);
    done(1, 99, 2);
    const struct event *event = told(EVENT_COMMITTED);
    CHECK_EQ(event->wait_us, 300);
    CHECK_EQ(event->us, 2000);
}

/* Less than an interval where a node came late: by so much the anchor has moved. */
TEST(a_commit_tells_by_how_many_steps_the_anchor_has_moved)
{
    job(2);
    ready(0, 0, 7, 40); /* 10 steps */
    ready(1, 0, 7, 10); /* 2 */
    done(0, 99, 1);
    done(1, 99, 2);
    CHECK_EQ(told(EVENT_COMMITTED)->steps_millionths, 8400000);
}

TEST(weights_are_what_each_member_did)
{
    job(2);
    ready(0, 0, 7, 30);
    ready(1, 0, 7, 0);
    const struct msg_begin *begin = &sent(0, FRAME_BEGIN)->as.begin;
    CHECK_EQ(begin->weights[0], 30);
    CHECK_EQ(begin->weights[1], 0);
}

TEST(a_closed_connection_is_a_death_at_once_and_the_rest_run_the_round_again)
{
    job(3);
    all_ready(3, 0, 7);
    clear();
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 2});
    CHECK(sent(0, FRAME_ABORT)->as.verdict.again);
    CHECK_EQ(told(EVENT_LOST)->rank, 2);
    CHECK_EQ(sent(0, FRAME_BEGIN)->as.begin.count, 2);
    CHECK_EQ(sent(0, FRAME_BEGIN)->as.begin.id.attempt, 2);
    done(0, 5, 1);
    done(1, 5, 2);
    CHECK(sent(1, FRAME_COMMIT));
}

TEST(means_that_differ_are_never_committed)
{
    job(3);
    all_ready(3, 0, 7);
    done(0, 99, 1);
    done(1, 98, 2);
    done(2, 99, 3);
    CHECK(sent(0, FRAME_ABORT) && !sent(0, FRAME_COMMIT));
    CHECK_EQ(told(EVENT_ODD)->rank, 1);
}

/* The others' reports of its link come first, more often than not. */
TEST(a_death_right_after_the_fault_that_it_caused_costs_no_pause)
{
    job(3);
    all_ready(3, 0, 7);
    say(0, (struct msg){.type = FRAME_FAULT,
                        .as.fault = {.id = master.round, .kind = FAULT_LINK, .rank = 2}});
    CHECK_EQ(master.phase, MASTER_BETWEEN);
    clear();
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 2});
    CHECK_EQ(sent(0, FRAME_BEGIN)->as.begin.count, 2);
}

TEST(equal_deltas_are_told_with_both_names)
{
    job(3);
    all_ready(3, 0, 7);
    done(0, 99, 5);
    done(1, 99, 6);
    done(2, 99, 5);
    CHECK_EQ(told(EVENT_TWINS)->rank, 0);
    CHECK_EQ(told(EVENT_TWINS)->other_rank, 2);
    const struct msg_verdict *commit = &sent(1, FRAME_COMMIT)->as.verdict;
    CHECK_EQ(commit->rank, 0);
    CHECK(strstr(commit->text, "nodes 0 and 2 train on the same data"));
}

TEST(a_node_with_a_nan_is_left_out_and_the_others_go_on)
{
    job(2);
    all_ready(2, 0, 7);
    clear();
    struct msg fault = {
        .type = FRAME_FAULT,
        .as.fault = {
            .id = master.round, .kind = FAULT_NONFINITE, .rank = 1, .text = "layer.weight"}};
    say(1, fault);
    CHECK_EQ(told(EVENT_NONFINITE)->rank, 1);
    CHECK_HAS(told(EVENT_NONFINITE)->text, "layer.weight");
    const struct msg_begin *begin = &sent(0, FRAME_BEGIN)->as.begin;
    CHECK_EQ(begin->weights[0], 40);
    CHECK_EQ(begin->weights[1], 0);
    CHECK_EQ(begin->count, 2); /* it still receives the mean */
}

TEST(an_odd_anchor_after_a_commit_is_named_and_fetches_the_others)
{
    job(3);
    all_ready(3, 0, 7);
    for (uint32_t i = 0; i < 3; i++) {
        done(i, 99, i + 1);
    }
    clear();
    hold(0, 1, 8);
    hold(1, 1, 666);
    CHECK(!told(EVENT_ODD));
    hold(2, 1, 8);
    CHECK_EQ(told(EVENT_ODD)->rank, 1);
    CHECK_EQ(sent(1, FRAME_CATCHUP)->as.catchup.digest, 8);
    CHECK_EQ(sent(1, FRAME_CATCHUP)->as.catchup.donor_count, 2);
    CHECK_EQ(master.listed_count, 2);
}

TEST(a_joiner_waits_for_the_round_to_end_and_then_catches_up)
{
    job(2);
    all_ready(2, 0, 7);
    clear();
    say(5, join_of(5));
    CHECK(sent(5, FRAME_ADMIT) && !sent(5, FRAME_CATCHUP));
    done(0, 99, 1);
    done(1, 99, 2);
    CHECK(!sent(5, FRAME_CATCHUP)); /* nobody has told the new digest yet */
    hold(0, 1, 8);
    hold(1, 1, 8);
    CHECK_EQ(sent(5, FRAME_CATCHUP)->as.catchup.version, 1);
    CHECK(!sent(5, FRAME_CATCHUP)->as.catchup.founder);
    hold(5, 1, 8);
    tick(MASTER_GATHER_US);
    CHECK_EQ(last_members.listed_count, 3);
}

TEST(a_joiner_under_way_is_waited_for_but_not_for_ever)
{
    job(2);
    say(5, join_of(5));
    ready(0, 0, 7, 1);
    ready(1, 0, 7, 1);
    CHECK_EQ(master.phase, MASTER_BETWEEN);
    for (uint32_t i = 0; i < 20 && master.phase == MASTER_BETWEEN; i++) {
        tick(1000000);
        say(0, (struct msg){.type = FRAME_HEARTBEAT});
        say(1, (struct msg){.type = FRAME_HEARTBEAT});
        say(5, (struct msg){.type = FRAME_HEARTBEAT});
    }
    CHECK_EQ(master.phase, MASTER_EXCHANGING);
}

/* It says nothing of its failures: a link that never comes up is tried for ever. */
TEST(a_joiner_that_can_fetch_from_nobody_holds_no_more_than_its_first_rounds)
{
    job(2);
    say(5, join_of(5));
    uint32_t held = 0;
    for (uint64_t version = 0; version < MASTER_CATCHUPS_HELD + 2; version++) {
        ready(0, version, 7 + version, 1);
        ready(1, version, 7 + version, 1);
        held += master.phase == MASTER_BETWEEN;
        for (uint32_t i = 0; i < 20 && master.phase == MASTER_BETWEEN; i++) {
            tick(1000000);
            say(0, (struct msg){.type = FRAME_HEARTBEAT});
            say(1, (struct msg){.type = FRAME_HEARTBEAT});
            say(5, (struct msg){.type = FRAME_HEARTBEAT});
        }
        CHECK_EQ(master.phase, MASTER_EXCHANGING);
        done(0, 99, 1);
        done(1, 99, 2);
        hold(0, version + 1, 8 + version);
        hold(1, version + 1, 8 + version);
    }
    CHECK_EQ(held, MASTER_CATCHUPS_HELD);
}

TEST(a_joiner_in_its_first_interval_is_summoned_when_all_others_are_ready)
{
    job(2);
    all_ready(2, 0, 7);
    done(0, 99, 1);
    done(1, 99, 2);
    hold(0, 1, 8);
    hold(1, 1, 8);
    say(5, join_of(5));
    hold(5, 1, 8);
    tick(MASTER_GATHER_US);
    clear();
    ready(0, 1, 8, 40);
    CHECK(!sent(5, FRAME_SUMMON));
    ready(1, 1, 8, 40);
    CHECK(sent(5, FRAME_SUMMON));
    CHECK_EQ(told(EVENT_SUMMONED)->rank, 5);
    ready(5, 1, 8, 4);
    CHECK_EQ(sent(5, FRAME_BEGIN)->as.begin.weights[2], 4);
}

TEST(a_member_that_cannot_tell_its_samples_makes_all_weigh_by_steps)
{
    job(3);
    master.nodes[2].identity.device_count = 2;
    ready(0, 0, 7, 40);
    ready(1, 0, 7, 400);
    say(2, (struct msg){.type = FRAME_READY,
                        .as.ready = {.version = 0, .digest = 7, .weight = 0, .steps = 30}});
    const struct msg_begin *begin = &sent(0, FRAME_BEGIN)->as.begin;
    CHECK_EQ(begin->weights[0], 10);
    CHECK_EQ(begin->weights[1], 100);
    CHECK_EQ(begin->weights[2], 60);
    CHECK_EQ(begin->job_step, 100);
}

TEST(a_member_that_did_nothing_leaves_the_others_their_samples)
{
    job(2);
    ready(0, 0, 7, 40);
    say(1, (struct msg){.type = FRAME_READY, .as.ready = {.version = 0, .digest = 7}});
    CHECK_EQ(sent(0, FRAME_BEGIN)->as.begin.weights[0], 40);
    CHECK_EQ(sent(0, FRAME_BEGIN)->as.begin.weights[1], 0);
}

TEST(a_straggler_is_summoned_after_a_grace)
{
    job(2);
    ready(0, 0, 7, 40);
    tick(MASTER_GRACE_MIN_US - 1);
    CHECK(!sent(1, FRAME_SUMMON));
    tick(1);
    CHECK(sent(1, FRAME_SUMMON) && !sent(0, FRAME_SUMMON));
}

TEST(a_leave_is_a_goodbye_and_costs_nobody_a_wait)
{
    job(3);
    ready(0, 0, 7, 40);
    ready(1, 0, 7, 40);
    say(2, (struct msg){.type = FRAME_LEAVE, .as.leave = {.finished = true}});
    CHECK_EQ(told(EVENT_LEFT)->rank, 2);
    CHECK_EQ(sent(0, FRAME_BEGIN)->as.begin.count, 2);
}

TEST(the_job_is_over_and_late_joiners_are_ended_when_the_founders_have_finished)
{
    job(2);
    all_ready(2, 0, 7);
    done(0, 9, 1);
    done(1, 9, 2);
    hold(0, 1, 8);
    hold(1, 1, 8);
    say(5, join_of(5));
    hold(5, 1, 8);
    clear();
    say(0, (struct msg){.type = FRAME_LEAVE, .as.leave = {.finished = true}});
    CHECK(!sent(5, FRAME_END));
    say(1, (struct msg){.type = FRAME_LEAVE, .as.leave = {.finished = true}});
    CHECK_EQ(sent(5, FRAME_END)->as.end.rc, 0);
    CHECK_EQ(over_rc, 0);
    CHECK_EQ(master.phase, MASTER_ENDED);
}

TEST(when_all_founders_die_the_others_take_their_place)
{
    job(1);
    all_ready(1, 0, 7);
    done(0, 9, 1);
    hold(0, 1, 8);
    say(5, join_of(5));
    hold(5, 1, 8);
    tick(MASTER_GATHER_US);
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 0});
    CHECK(!sent(5, FRAME_END));
    ready(5, 1, 8, 40);
    CHECK_EQ(sent(5, FRAME_BEGIN)->as.begin.count, 1);
}

TEST(a_rank_that_is_taken_is_refused_with_both_addresses)
{
    job(2);
    struct msg other = join_of(1);
    other.as.join.identity.instance = 555;
    strcpy(other.as.join.identity.address, "10.9.9.9:1");
    say(7, other);
    CHECK(sent(7, FRAME_REFUSE)->as.refuse.retry_ms > 0); /* once more: news may be under way */
    say(8, other);
    CHECK_EQ(sent(8, FRAME_REFUSE)->as.refuse.retry_ms, 0);
    CHECK_HAS(sent(8, FRAME_REFUSE)->as.refuse.text, "10.0.0.1:1");
    CHECK_HAS(sent(8, FRAME_REFUSE)->as.refuse.text, "10.9.9.9:1");
    CHECK_EQ(closed[closed_count - 1], 8);
}

TEST(a_process_that_comes_over_another_connection_takes_its_rank_back)
{
    job(2);
    say(7, join_of(1));
    CHECK(sent(7, FRAME_ADMIT));
    CHECK_EQ(closed[closed_count - 1], 1);
    CHECK_EQ(told(EVENT_LOST)->rank, 1);
}

TEST(settings_that_differ_are_refused_with_names_and_both_values)
{
    job(1);
    struct msg other = join_of(3);
    strcpy(other.as.join.settings.interval, "50");
    say(3, other);
    const struct msg_refuse *refuse = &sent(3, FRAME_REFUSE)->as.refuse;
    CHECK_EQ(refuse->rc, SOLO_EMISMATCH);
    CHECK_HAS(refuse->text, "--sync_interval");
    CHECK_HAS(refuse->text, "node 3");
    CHECK_HAS(refuse->text, "\"50\"");
    CHECK_HAS(refuse->text, "\"100\"");
    other = join_of(4);
    other.as.join.settings.elements[0] = 2000;
    say(4, other);
    CHECK_EQ(sent(4, FRAME_REFUSE)->as.refuse.rc, SOLO_EMISMATCH);
    CHECK_HAS(sent(4, FRAME_REFUSE)->as.refuse.text, "2000");
    other = join_of(5);
    strcpy(other.as.join.job_id, "another");
    say(5, other);
    CHECK_HAS(sent(5, FRAME_REFUSE)->as.refuse.text, "\"another\"");
    other = join_of(6);
    strcpy(other.as.join.settings.versions, "torch=1");
    say(6, other);
    CHECK_EQ(sent(6, FRAME_REFUSE)->as.refuse.rc, SOLO_EVERSION);
}

TEST(a_silent_node_is_dropped_when_its_lease_ends)
{
    job(2);
    for (uint32_t i = 0; i < 12; i++) {
        tick(1000000);
        say(0, (struct msg){.type = FRAME_HEARTBEAT});
    }
    CHECK_EQ(told(EVENT_LOST)->rank, 1);
    CHECK_HAS(told(EVENT_LOST)->text, "silent");
    CHECK_EQ(told(EVENT_LOST)->rc, SOLO_ETIMEDOUT); /* not SOLO_ECLOSED, of a connection */
    CHECK_EQ(last_members.gone_count, 1);
    CHECK_EQ(last_members.gone[0].node_rank, 1);
    CHECK_HAS(last_members.gone[0].text, "silent");
    CHECK_EQ(told(EVENT_ALONE)->rank, 0);
}

TEST(a_master_that_slept_drops_nobody_when_it_wakes)
{
    job(3);
    tick(30000000);
    CHECK(!told(EVENT_LOST));
    CHECK_EQ(master.listed_count, 3);
}

/* All its links break, one after the other: the merge is not given up for it. */
TEST(a_round_may_fail_on_account_of_each_member_and_still_be_tried_again)
{
    enum { NODES = 12 };
    job(NODES);
    all_ready(NODES, 0, 7);
    for (uint32_t i = 0; i < 20; i++) {
        clear();
        say(5,
            (struct msg){.type = FRAME_FAULT,
                         .as.fault = {.id = master.round, .kind = FAULT_LINK, .rank = i % NODES}});
        CHECK(sent(0, FRAME_ABORT)->as.verdict.again);
        for (uint32_t rank = 0; rank < NODES; rank++) {
            say(rank, (struct msg){.type = FRAME_HEARTBEAT});
        }
        tick(2000000);
        CHECK_EQ(master.phase, MASTER_EXCHANGING);
    }
}

TEST(who_fails_rounds_again_and_again_is_dropped_for_a_while)
{
    job(3);
    all_ready(3, 0, 7);
    clear();
    for (uint32_t i = 0; i < MASTER_BLAME_MAX && !told(EVENT_LOST); i++) {
        CHECK_EQ(master.phase, MASTER_EXCHANGING);
        struct msg fault = {.type = FRAME_FAULT,
                            .as.fault = {.id = master.round, .kind = FAULT_LINK, .rank = 1}};
        say(0, fault);
        say(2, fault);
        CHECK(sent(1, FRAME_ABORT));
        tick(1000000);
    }
    CHECK_EQ(told(EVENT_LOST)->rank, 1);
    CHECK(sent(1, FRAME_REFUSE)->as.refuse.retry_ms > 0);
    CHECK_EQ(master.msg_begin.as.begin.count, 2);
    say(9, join_of(1));
    CHECK(sent(9, FRAME_REFUSE)->as.refuse.retry_ms > 0);
}

/* ---- after a restart ----------------------------------------------------------------------- */

TEST(the_master_ends_when_nobody_was_there_for_the_whole_timeout)
{
    start(1); /* before the first node came there is time for it to start */
    tick(59000000 + MASTER_FIRST_NODE_US);
    CHECK_EQ(over_rc, 1);
    tick(2000000);
    CHECK_EQ(over_rc, SOLO_ETIMEDOUT);
}

TEST(the_status_names_who_is_there_and_who_left_and_why)
{
    job(2);
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 1, .text = "reset by peer"});
    static struct msg_status status;
    master_status(&master, &status);
    CHECK_EQ(status.count, 2);
    CHECK_EQ(status.member_count, 1);
    CHECK_EQ(status.rows[0].standing, STANDING_MEMBER);
    CHECK_EQ(status.rows[1].standing, STANDING_LOST);
    CHECK_HAS(status.rows[1].left, "reset by peer");
}

TEST(a_full_house_gets_all_its_messages_though_one_answer_cannot_hold_them)
{
    uint32_t count = SOLO_MEMBERS_MAX;
    start(1);
    for (uint32_t i = 0; i < count; i++) {
        say(i, join_of(i));
    }
    tick(MASTER_FOUND_US);
    clear();
    hold(0, 0, 7);
    for (uint32_t i = 1; i < count; i++) {
        CHECK(sent(i, FRAME_CATCHUP));
    }
    for (uint32_t i = 1; i < count; i++) {
        clear();
        hold(i, 0, 7);
    }
    tick(MASTER_GATHER_US);
    CHECK_EQ(last_members.listed_count, count);
    struct msg more = join_of(count);
    say(count, more);
    CHECK_EQ(sent(count, FRAME_REFUSE)->as.refuse.rc, SOLO_ELIMIT);
}
