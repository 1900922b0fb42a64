#include "check.h"
#include "protocol/member.h"

static struct member member;
static struct out out;
static struct msg_members list;
static uint64_t now_us;
static void *memory;
static struct plan_model model = {{1000, 0, 0, 0}};

static int feed(struct member_event event)
{
    event.now_us = now_us;
    return member_step(&member, &event, &out);
}

static const struct action *find(enum action_type type)
{
    for (uint32_t i = 0; i < out.count; i++) {
        if (out.actions[i].type == type) {
            return &out.actions[i];
        }
    }
    return NULL;
}

static const struct msg *sent(enum frame_type type)
{
    for (uint32_t i = 0; i < out.count; i++) {
        const struct action *action = &out.actions[i];
        if (action->type == ACTION_SEND_MASTER && out.msgs[action->index].type == type) {
            return &out.msgs[action->index];
        }
    }
    return NULL;
}

static void say(const struct msg *msg)
{
    CHECK_EQ(feed((struct member_event){.type = MEMBER_MESSAGE, .msg = msg}), 0);
}

static void start(uint32_t rank)
{
    struct member_config config = {.identity = {.node_rank = rank, .instance = 100 + rank},
                                   .seed = 1,
                                   .timeout_us = 60000000,
                                   .lease_us = 10000000};
    now_us = 1000000;
    member_init(&member, &config);
    CHECK_EQ(feed((struct member_event){.type = MEMBER_START}), 0);
    CHECK(find(ACTION_CONNECT_MASTER));
}

static void attach(void)
{
    free(memory);
    memory = calloc(1, member_memory_bytes(&model));
    struct member_attach request = {.model = model, .memory = memory};
    CHECK_EQ(feed((struct member_event){.type = MEMBER_ATTACH, .attach = &request}), 0);
}

static void admit(void)
{
    struct msg msg = {.type = FRAME_ADMIT, .as.admit = {.incarnation = 5, .lease_ms = 10000}};
    say(&msg);
}

static void members(uint32_t counter, uint32_t count)
{
    memset(&list, 0, sizeof list);
    list.epoch = (struct epoch){5, counter};
    list.listed_count = list.count = count;
    for (uint32_t i = 0; i < count; i++) {
        list.rows[i].identity.node_rank = i;
        list.rows[i].identity.instance = 100 + i;
        list.rows[i].listed = true;
    }
    struct msg msg = {.type = FRAME_MEMBERS, .table.members = &list};
    say(&msg);
}

/* Joined as rank 0 with its own values as version 0, in a list of `count`. */
static void join(uint32_t count)
{
    start(0);
    CHECK_EQ(feed((struct member_event){.type = MEMBER_MASTER_UP}), 0);
    CHECK(!sent(FRAME_JOIN)); /* there is no model yet */
    attach();
    CHECK(sent(FRAME_JOIN));
    admit();
    struct msg order = {.type = FRAME_CATCHUP, .as.catchup = {.own = true, .founder = true}};
    say(&order);
    CHECK(find(ACTION_ADOPT) && find(ACTION_ADOPT)->flag);
    CHECK_EQ(feed((struct member_event){.type = MEMBER_ADOPTED, .digest = 77}), 0);
    CHECK(sent(FRAME_CAUGHT_UP)->as.caught_up.digest == 77);
    members(1, count);
    CHECK(find(ACTION_JOINED));
    CHECK_EQ(out.result.rc, 0);
}

static void submit(void)
{
    struct member_event event = {.type = MEMBER_SUBMIT, .submit = {.samples = 40, .steps = 10}};
    CHECK_EQ(feed(event), 0);
}

static struct round_id id_of(uint32_t counter, uint32_t attempt)
{
    return (struct round_id){{5, counter}, 1, attempt};
}

static void begin(uint32_t counter, uint32_t attempt, uint32_t count)
{
    struct msg msg = {.type = FRAME_BEGIN,
                      .as.begin = {.id = id_of(counter, attempt),
                                   .count = count,
                                   .stall_ms = 10000,
                                   .job_step = 10,
                                   .weights = {40, 40}}};
    say(&msg);
}

/* All own work of a round of one member. */
static void work_alone(struct round_id id)
{
    for (uint32_t i = 0; i < 4; i++) {
        feed((struct member_event){.type = MEMBER_ENCODED, .id = id, .chunk = i, .ok = true});
    }
    for (uint32_t i = 0; i < 4; i++) {
        feed((struct member_event){
            .type = MEMBER_REDUCED, .id = id, .chunk = i, .mean_digest = 1234});
    }
}

static void verdict(enum frame_type type, struct round_id id, bool again)
{
    struct msg msg = {.type = type,
                      .as.verdict = {.id = id,
                                     .mean_digest = 1234,
                                     .again = again,
                                     .rc = type == FRAME_ABORT ? SOLO_EABORTED : 0}};
    say(&msg);
}

TEST(a_commit_that_names_twins_is_applied_and_told)
{
    join(1);
    submit();
    begin(1, 1, 1);
    work_alone(id_of(1, 1));
    struct msg commit = {.type = FRAME_COMMIT,
                         .as.verdict = {.id = id_of(1, 1), .mean_digest = 1234, .text = "twins"}};
    say(&commit);
    CHECK(find(ACTION_APPLY));
    CHECK_EQ(out.events[0].kind, EVENT_TWINS);
    CHECK(strcmp(out.events[0].text, "twins") == 0);
}

TEST(a_lone_member_merges_from_submit_to_complete)
{
    join(1);
    submit();
    CHECK_EQ(sent(FRAME_READY)->as.ready.weight, 40);
    CHECK_EQ(sent(FRAME_READY)->as.ready.digest, 77);
    begin(1, 1, 1);
    CHECK(find(ACTION_ROUND) && find(ACTION_ENCODE));
    work_alone(id_of(1, 1));
    CHECK_EQ(sent(FRAME_DONE)->as.done.mean_digest, 1234);
    verdict(FRAME_COMMIT, id_of(1, 1), false);
    CHECK(find(ACTION_APPLY));
    CHECK_EQ(feed((struct member_event){.type = MEMBER_APPLIED, .id = id_of(1, 1), .digest = 88}),
             0);
    CHECK(find(ACTION_COMPLETE));
    CHECK_EQ(out.result.rc, 0);
    CHECK_EQ(out.result.outcome, SOLO_ALONE);
    CHECK_EQ(out.result.version, 1);
    CHECK_EQ(out.result.job_step, 10);
    CHECK_EQ(sent(FRAME_CAUGHT_UP)->as.caught_up.digest, 88);
}

TEST(an_aborted_attempt_is_dropped_and_the_next_begins_from_the_same_values)
{
    join(1);
    submit();
    begin(1, 1, 1);
    verdict(FRAME_ABORT, id_of(1, 1), true);
    CHECK(find(ACTION_DROP_ROUND) && !find(ACTION_COMPLETE));
    CHECK_EQ(member.state, MEMBER_READY);
    begin(1, 2, 1);
    CHECK(find(ACTION_ENCODE));
    work_alone(id_of(1, 1)); /* late work of the first attempt counts for nothing */
    CHECK(!sent(FRAME_DONE));
    work_alone(id_of(1, 2));
    CHECK(sent(FRAME_DONE));
}

TEST(a_verdict_of_another_attempt_changes_nothing)
{
    join(1);
    submit();
    begin(1, 1, 1);
    work_alone(id_of(1, 1));
    verdict(FRAME_COMMIT, id_of(1, 2), false);
    CHECK(!find(ACTION_APPLY));
    verdict(FRAME_ABORT, id_of(0, 1), true);
    CHECK(!find(ACTION_DROP_ROUND));
}

TEST(a_final_abort_ends_the_merge_with_its_text)
{
    join(1);
    submit();
    begin(1, 1, 1);
    struct msg msg = {.type = FRAME_ABORT,
                      .as.verdict = {.id = id_of(1, 1), .rc = SOLO_EABORTED, .text = "too often"}};
    say(&msg);
    CHECK(find(ACTION_COMPLETE));
    CHECK_EQ(out.result.rc, SOLO_EABORTED);
    CHECK_STR(member.text, "too often");
}

TEST(a_member_that_sent_done_is_in_doubt_when_the_master_is_lost_and_says_so)
{
    join(1);
    submit();
    begin(1, 1, 1);
    work_alone(id_of(1, 1));
    feed((struct member_event){.type = MEMBER_MASTER_DOWN, .rc = SOLO_ECLOSED});
    CHECK(!find(ACTION_DROP_ROUND));
    now_us = out.wake_us;
    feed((struct member_event){.type = MEMBER_TICK});
    CHECK(find(ACTION_CONNECT_MASTER));
    feed((struct member_event){.type = MEMBER_MASTER_UP});
    const struct msg_join *told = &sent(FRAME_JOIN)->as.join;
    CHECK(told->returning && round_id_equal(told->doubt, id_of(1, 1)));
    CHECK_EQ(told->doubt_digest, 1234);
    admit();
    verdict(FRAME_COMMIT, id_of(1, 1), false);
    CHECK(find(ACTION_APPLY));
}

TEST(a_joiner_tells_a_master_of_the_list_it_got_before_it_was_in_one)
{
    start(0);
    feed((struct member_event){.type = MEMBER_MASTER_UP});
    attach();
    CHECK_EQ(sent(FRAME_JOIN)->as.join.epoch.incarnation, 0); /* it has heard of no job */
    admit();
    memset(&list, 0, sizeof list);
    list.epoch = (struct epoch){5, 3};
    list.listed_count = list.count = 1;
    list.rows[0].identity = (struct msg_identity){.node_rank = 4, .instance = 104};
    list.rows[0].listed = true;
    struct msg msg = {.type = FRAME_MEMBERS, .table.members = &list};
    say(&msg);
    feed((struct member_event){.type = MEMBER_MASTER_DOWN, .rc = SOLO_ECLOSED});
    now_us = out.wake_us;
    feed((struct member_event){.type = MEMBER_TICK});
    feed((struct member_event){.type = MEMBER_MASTER_UP});
    const struct msg_join *told = &sent(FRAME_JOIN)->as.join;
    CHECK(!told->returning);
    CHECK_EQ(told->epoch.incarnation, 5);
    CHECK_EQ(told->epoch.counter, 3);
    CHECK_EQ(told->epoch_count, 1);
    CHECK_EQ(told->epoch_ranks[0], 4);
}

TEST(a_member_that_had_not_sent_done_drops_the_attempt_with_the_master)
{
    join(1);
    submit();
    begin(1, 1, 1);
    feed((struct member_event){.type = MEMBER_MASTER_DOWN, .rc = SOLO_ECLOSED});
    CHECK(find(ACTION_DROP_ROUND));
    CHECK_EQ(member.state, MEMBER_READY);
    now_us = out.wake_us;
    feed((struct member_event){.type = MEMBER_TICK});
    feed((struct member_event){.type = MEMBER_MASTER_UP});
    CHECK_EQ(sent(FRAME_JOIN)->as.join.doubt.round, 0);
    admit();
    members(2, 1);
    CHECK(sent(FRAME_READY)); /* the delta was kept */
}

TEST(a_nan_is_told_with_the_name_of_the_tensor)
{
    join(1);
    submit();
    begin(1, 1, 1);
    feed((struct member_event){
        .type = MEMBER_ENCODED, .id = id_of(1, 1), .ok = false, .text = "layer.weight"});
    CHECK_EQ(sent(FRAME_FAULT)->as.fault.kind, FAULT_NONFINITE);
    CHECK_STR(sent(FRAME_FAULT)->as.fault.text, "layer.weight");
}

TEST(the_lower_rank_connects_and_only_known_peers_are_let_in)
{
    join(2);
    CHECK(find(ACTION_CONNECT));
    int peer = member_peer_of(&member, 1, 101);
    CHECK(peer >= 0);
    CHECK(member_peer_of(&member, 1, 999) < 0);
    CHECK(member_peer_of(&member, 2, 101) < 0);
    feed((struct member_event){.type = MEMBER_LINK_DOWN, .peer = (uint32_t)peer});
    now_us = out.wake_us;
    feed((struct member_event){.type = MEMBER_TICK});
    CHECK(find(ACTION_CONNECT)); /* again, later */
}

TEST(a_link_lost_in_a_round_is_told_with_the_rank)
{
    join(2);
    uint32_t peer = (uint32_t)member_peer_of(&member, 1, 101);
    feed((struct member_event){.type = MEMBER_LINK_UP, .peer = peer});
    submit();
    begin(1, 1, 2);
    feed((struct member_event){.type = MEMBER_LINK_DOWN, .peer = peer, .text = "reset"});
    CHECK_EQ(sent(FRAME_FAULT)->as.fault.kind, FAULT_LINK);
    CHECK_EQ(sent(FRAME_FAULT)->as.fault.rank, 1);
}

TEST(a_payload_that_fails_its_checksum_costs_the_link)
{
    join(2);
    uint32_t peer = (uint32_t)member_peer_of(&member, 1, 101);
    feed((struct member_event){.type = MEMBER_LINK_UP, .peer = peer});
    submit();
    begin(1, 1, 2);
    struct frame frame = {.type = FRAME_DELTA, .epoch = {5, 1}, .round = 1, .attempt = 1};
    feed(
        (struct member_event){.type = MEMBER_RECEIVED, .peer = peer, .frame = &frame, .ok = false});
    CHECK(find(ACTION_CLOSE));
    CHECK_EQ(sent(FRAME_FAULT)->as.fault.kind, FAULT_CORRUPT);
}

TEST(frames_are_taken_by_their_attempt)
{
    join(2);
    uint32_t peer = (uint32_t)member_peer_of(&member, 1, 101);
    feed((struct member_event){.type = MEMBER_LINK_UP, .peer = peer});
    submit();
    struct frame frame = {.type = FRAME_DELTA, .epoch = {5, 1}, .round = 1, .attempt = 2};
    CHECK_EQ(member_take(&member, peer, &frame), TAKE_LATER); /* its BEGIN is still on the way */
    begin(1, 2, 2);
    CHECK(find(ACTION_RECHECK));
    CHECK_EQ(member_take(&member, peer, &frame), TAKE_HERE);
    frame.attempt = 1;
    CHECK_EQ(member_take(&member, peer, &frame), TAKE_DROP);
    frame.attempt = 3;
    CHECK_EQ(member_take(&member, peer, &frame), TAKE_LATER);
    frame = (struct frame){.type = FRAME_DELTA, .epoch = {4, 9}, .round = 9, .attempt = 9};
    CHECK_EQ(member_take(&member, peer, &frame), TAKE_DROP); /* an earlier master's */
    frame = (struct frame){.type = FRAME_JOIN};
    CHECK_EQ(member_take(&member, peer, &frame), TAKE_FAULT);
}

TEST(a_member_that_fell_out_hears_it_at_its_next_merge)
{
    join(2);
    struct msg order = {
        .type = FRAME_CATCHUP,
        .as.catchup = {.version = 4, .digest = 55, .donor_count = 1, .donors = {1}}};
    say(&order);
    CHECK_EQ(member.state, MEMBER_CATCHING_UP);
    uint32_t peer = (uint32_t)member_peer_of(&member, 1, 101);
    feed((struct member_event){.type = MEMBER_LINK_UP, .peer = peer});
    const struct action *fetch = find(ACTION_FETCH);
    CHECK(fetch && fetch->version == 4);
    struct frame frame = {.type = FRAME_STATE, .round = 4};
    feed((struct member_event){.type = MEMBER_RECEIVED, .peer = peer, .frame = &frame, .ok = true});
    CHECK(find(ACTION_ADOPT) && !find(ACTION_ADOPT)->flag);
    feed((struct member_event){.type = MEMBER_ADOPTED, .digest = 55});
    members(2, 2);
    CHECK(!find(ACTION_COMPLETE));
    submit();
    CHECK(find(ACTION_COMPLETE));
    CHECK_EQ(out.result.outcome, SOLO_REJOINED);
    CHECK_EQ(out.result.version, 4);
}

TEST(an_anchor_with_a_wrong_digest_is_fetched_again_and_then_given_up)
{
    join(2);
    uint32_t peer = (uint32_t)member_peer_of(&member, 1, 101);
    feed((struct member_event){.type = MEMBER_LINK_UP, .peer = peer});
    struct msg order = {
        .type = FRAME_CATCHUP,
        .as.catchup = {.version = 4, .digest = 55, .donor_count = 1, .donors = {1}}};
    say(&order);
    struct frame frame = {.type = FRAME_STATE, .round = 4};
    for (uint32_t i = 0; i < CATCHUP_TRIES_MAX; i++) {
        CHECK(find(ACTION_FETCH));
        feed((struct member_event){
            .type = MEMBER_RECEIVED, .peer = peer, .frame = &frame, .ok = true});
        CHECK(find(ACTION_ADOPT));
        feed((struct member_event){.type = MEMBER_ADOPTED, .digest = 56});
    }
    CHECK(sent(FRAME_CAUGHT_UP) && !sent(FRAME_CAUGHT_UP)->as.caught_up.held);
}

TEST(a_donor_serves_what_it_holds_and_says_no_to_the_rest)
{
    join(2);
    uint32_t peer = (uint32_t)member_peer_of(&member, 1, 101);
    feed((struct member_event){.type = MEMBER_LINK_UP, .peer = peer});
    struct frame frame = {.type = FRAME_FETCH, .round = 0, .chunk = 0};
    struct member_event ask = {.type = MEMBER_RECEIVED, .peer = peer, .frame = &frame, .ok = true};
    feed(ask);
    CHECK(find(ACTION_SERVE));
    frame.round = 1;
    feed(ask);
    CHECK(find(ACTION_NO_STATE));
    frame = (struct frame){.type = FRAME_FETCH, .chunk = 9};
    feed(ask);
    CHECK(find(ACTION_NO_STATE));
    frame.chunk = 0;
    for (uint32_t i = 1; i < CATCHUP_SERVES_MAX; i++) {
        feed(ask);
        CHECK(find(ACTION_SERVE));
    }
    feed(ask);
    CHECK(find(ACTION_NO_STATE)); /* it asks for more at a time than is allowed */
}

TEST(a_silent_master_is_left_and_a_sleep_of_our_own_is_no_silence)
{
    join(1);
    now_us += 9000000; /* we were stopped */
    feed((struct member_event){.type = MEMBER_TICK});
    CHECK(!find(ACTION_CLOSE_MASTER));
    for (uint32_t i = 0; i < 40 && !find(ACTION_CLOSE_MASTER); i++) {
        now_us = out.wake_us;
        feed((struct member_event){.type = MEMBER_TICK});
    }
    CHECK(find(ACTION_CLOSE_MASTER));
    CHECK_EQ(member.state, MEMBER_TRAINING); /* it trains on */
}

TEST(a_merge_gives_up_after_the_timeout_and_says_whom_it_waited_for)
{
    join(1);
    feed((struct member_event){.type = MEMBER_MASTER_DOWN, .rc = SOLO_ECLOSED});
    submit();
    for (uint32_t i = 0; i < 1000 && !find(ACTION_COMPLETE); i++) {
        now_us = out.wake_us;
        feed((struct member_event){.type = MEMBER_TICK});
        if (find(ACTION_CONNECT_MASTER)) {
            feed((struct member_event){.type = MEMBER_MASTER_DOWN, .rc = SOLO_ECLOSED});
        }
    }
    CHECK(find(ACTION_COMPLETE));
    CHECK_EQ(out.result.rc, SOLO_ETIMEDOUT);
    CHECK_HAS(member.text, "waited for the master, which does not answer");
}

TEST(a_wrong_token_ends_a_member_that_never_joined)
{
    start(0);
    attach();
    feed((struct member_event){
        .type = MEMBER_MASTER_DOWN, .rc = SOLO_EAUTH, .text = "the token is wrong"});
    CHECK(find(ACTION_JOINED) && find(ACTION_OVER));
    CHECK_EQ(out.result.rc, SOLO_EAUTH);
    CHECK_STR(member.text, "the token is wrong");
}

TEST(a_refusal_with_a_pause_is_tried_again_and_one_without_ends)
{
    start(0);
    feed((struct member_event){.type = MEMBER_MASTER_UP});
    attach();
    struct msg refuse = {.type = FRAME_REFUSE, .as.refuse = {.rc = SOLO_EREFUSED, .retry_ms = 300}};
    say(&refuse);
    CHECK(find(ACTION_CLOSE_MASTER) && !find(ACTION_OVER));
    CHECK(out.wake_us >= now_us + 300000);
    now_us = out.wake_us;
    feed((struct member_event){.type = MEMBER_TICK});
    feed((struct member_event){.type = MEMBER_MASTER_UP});
    refuse.as.refuse.retry_ms = 0;
    strcpy(refuse.as.refuse.text, "node_rank 0 is held by another");
    say(&refuse);
    CHECK(find(ACTION_OVER));
    CHECK_HAS(member.text, "node_rank 0");
}
