/* The end of the job, and lists that no honest master sends, while a merge is under way. */
#include "check.h"
#include "protocol/member.h"

static struct member member;
static struct out out;
static struct msg_members list;
static uint64_t now_us;
static uint64_t memory[1 << 16];

static void step(struct member_event event)
{
    event.now_us = now_us += 1000;
    CHECK_EQ(member_step(&member, &event, &out), 0);
}

static uint32_t count_of(enum action_type type)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < out.count; i++) {
        count += out.actions[i].type == type;
    }
    return count;
}

static void tell(enum frame_type type, struct msg *msg)
{
    msg->type = type;
    step((struct member_event){.type = MEMBER_MESSAGE, .msg = msg});
}

static void tell_list(void)
{
    struct msg msg = {.table.members = &list};
    tell(FRAME_MEMBERS, &msg);
}

/* Joined as the first of `count` members, with a merge submitted and begun. */
static struct round_id begin_of(uint32_t count, uint64_t elements)
{
    struct member_config config = {
        .identity = {.instance = 100}, .timeout_us = 60000000, .lease_us = 10000000};
    struct member_attach attach = {.model = {{elements}}, .memory = memory};
    CHECK(member_memory_bytes(&attach.model) <= sizeof memory);
    member_init(&member, &config);
    step((struct member_event){.type = MEMBER_START});
    step((struct member_event){.type = MEMBER_ATTACH, .attach = &attach});
    step((struct member_event){.type = MEMBER_MASTER_UP});
    struct msg msg = {.as.admit = {.incarnation = 5, .lease_ms = 10000}};
    tell(FRAME_ADMIT, &msg);
    struct msg order = {.as.catchup = {.own = true, .founder = true}};
    tell(FRAME_CATCHUP, &order);
    step((struct member_event){.type = MEMBER_ADOPTED, .digest = 77});
    list = (struct msg_members){.epoch = {5, 1}, .count = count, .listed_count = count};
    for (uint32_t i = 0; i < count; i++) {
        list.rows[i].identity = (struct msg_identity){.node_rank = i, .instance = 100 + i};
    }
    tell_list();
    CHECK_EQ(count_of(ACTION_JOINED), 1);
    step((struct member_event){.type = MEMBER_SUBMIT, .submit = {.samples = 40, .steps = 10}});
    struct round_id id = {{5, 1}, 1, 1};
    struct msg begin = {.as.begin = {.id = id, .count = count, .stall_ms = 10000, .weights = {40}}};
    tell(FRAME_BEGIN, &begin);
    CHECK_EQ(count_of(ACTION_ROUND), 1);
    return id;
}

/* What is half new is neither the old values nor the merge's. */
static void end_while_applying(enum frame_type type)
{
    struct round_id id = begin_of(1, 10);
    step((struct member_event){.type = MEMBER_ENCODED, .id = id, .ok = true});
    step((struct member_event){.type = MEMBER_REDUCED, .id = id, .mean_digest = 1234});
    struct msg commit = {.as.verdict = {.id = id, .mean_digest = 1234}};
    tell(FRAME_COMMIT, &commit);
    CHECK_EQ(count_of(ACTION_APPLY), 1);
    if (type == FRAME_END) {
        struct msg end = {0};
        tell(FRAME_END, &end);
    } else {
        step((struct member_event){.type = MEMBER_LEAVE, .ok = true, .text = "done"});
    }
    CHECK_EQ(count_of(ACTION_CLOSE_MASTER), 1);
    CHECK_EQ(count_of(ACTION_COMPLETE) + count_of(ACTION_OVER), 0);
    now_us += 5000000;
    step((struct member_event){.type = MEMBER_TICK});
    CHECK_EQ(count_of(ACTION_CONNECT_MASTER), 0);
    step((struct member_event){.type = MEMBER_APPLIED, .id = id, .digest = 9});
    CHECK_EQ(count_of(ACTION_COMPLETE), 1);
    CHECK_EQ(count_of(ACTION_OVER), 1);
    CHECK_EQ(out.result.rc, 0);
    CHECK_EQ(out.result.version, 1);
}

TEST(the_end_of_the_job_waits_for_an_outer_step_that_has_begun)
{
    end_while_applying(FRAME_END);
}

TEST(leaving_waits_for_an_outer_step_that_has_begun)
{
    end_while_applying(FRAME_LEAVE);
}

TEST(a_list_that_lacks_many_of_a_rounds_members_is_one_fault)
{
    begin_of(40, 100000);
    list.epoch.counter = 2;
    list.count = list.listed_count = 1;
    tell_list();
    CHECK_EQ(count_of(ACTION_CLOSE), 39);
    CHECK_EQ(out.msg_count, 1);
    CHECK_EQ(out.msgs[0].type, FRAME_FAULT);
}

TEST(a_list_that_names_a_member_twice_leaves_it_its_slot)
{
    begin_of(1, 10);
    list.epoch.counter = 2;
    list.rows[1] = list.rows[0];
    list.count = 2;
    tell_list();
    CHECK(member.listed);
    CHECK_EQ(member.slot, 0);
}
