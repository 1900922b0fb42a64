#include "check.h"
#include "protocol/member.h"

static struct member member;
static struct out out;
static uint64_t now_us;

static void step(struct member_event event)
{
    event.now_us = now_us += 1000;
    CHECK_EQ(member_step(&member, &event, &out), 0);
}

static void tell(enum frame_type type, struct msg *msg)
{
    msg->type = type;
    step((struct member_event){.type = MEMBER_MESSAGE, .msg = msg});
}

static bool wants(enum action_type type)
{
    for (uint32_t i = 0; i < out.count; i++) {
        if (out.actions[i].type == type) {
            return true;
        }
    }
    return false;
}

static void list(bool listed)
{
    static struct msg_members members;
    members =
        (struct msg_members){.epoch = {1, listed ? 2 : 1}, .count = 1, .listed_count = listed};
    members.rows[0].identity = member.config.identity;
    members.rows[0].listed = listed;
    struct msg msg = {.table.members = &members};
    tell(FRAME_MEMBERS, &msg);
}

static void order(void)
{
    struct msg msg = {.as.catchup = {.own = true, .founder = true}};
    tell(FRAME_CATCHUP, &msg);
    CHECK(wants(ACTION_ADOPT));
}

static void admit(void)
{
    step((struct member_event){.type = MEMBER_MASTER_UP});
    struct msg msg = {.as.admit = {.incarnation = 1, .lease_ms = 1000}};
    tell(FRAME_ADMIT, &msg);
    list(false);
}

static void come_up(uint64_t elements)
{
    static uint64_t memory[1 << 16];
    struct member_config config = {
        .identity = {.instance = 7}, .timeout_us = 5000000, .lease_us = 1000000};
    struct member_attach attach = {.model = {{elements}}, .memory = memory};
    CHECK(member_memory_bytes(&attach.model) <= sizeof memory);
    member_init(&member, &config);
    step((struct member_event){.type = MEMBER_START});
    step((struct member_event){.type = MEMBER_ATTACH, .attach = &attach});
    admit();
}

TEST(a_member_that_holds_the_anchor_has_joined_when_the_list_comes)
{
    come_up(10);
    order();
    step((struct member_event){.type = MEMBER_ADOPTED, .digest = 5});
    CHECK(!wants(ACTION_JOINED));
    list(true);
    CHECK(wants(ACTION_JOINED));
}

/* The master may order a second time before it has heard that the first is done. */
TEST(a_list_that_comes_while_the_anchor_is_adopted_once_more_counts_afterwards)
{
    come_up(10);
    order();
    step((struct member_event){.type = MEMBER_ADOPTED, .digest = 5});
    order();
    list(true);
    CHECK(!wants(ACTION_JOINED));
    step((struct member_event){.type = MEMBER_ADOPTED, .digest = 5});
    CHECK(wants(ACTION_JOINED));
}

/* What it holds then is not what its script holds. */
TEST(what_was_fetched_replaces_the_scripts_values_also_when_another_master_says_begin_with_your_own)
{
    come_up(0); /* nothing to fetch */
    struct msg order = {.as.catchup = {.version = 3, .digest = 5}};
    tell(FRAME_CATCHUP, &order);
    step((struct member_event){.type = MEMBER_ADOPTED, .digest = 5});
    step((struct member_event){.type = MEMBER_MASTER_DOWN, .rc = SOLO_ECLOSED, .text = "gone"});
    now_us += 1000000;
    step((struct member_event){.type = MEMBER_TICK});
    admit();
    order.as.catchup = (struct msg_catchup){.version = 3, .digest = 5, .own = true};
    tell(FRAME_CATCHUP, &order);
    CHECK(!wants(ACTION_ADOPT));
    list(true);
    CHECK(wants(ACTION_JOINED));
    CHECK(out.result.replaced);
}

TEST(a_peer_that_cannot_be_reached_twice_is_named_with_its_address)
{
    come_up(1000);
    member.peers[0] = (struct peer){.used = true, .node_rank = 5, .address = "10.0.0.9:5555"};
    member.peer_count = 1;
    for (uint32_t tries = 0; tries < 2; tries++) {
        member.peers[0].link = LINK_CONNECTING;
        step((struct member_event){.type = MEMBER_LINK_DOWN, .text = "no answer"});
        CHECK_EQ(out.event_count, tries);
    }
    CHECK_EQ(out.events[0].kind, EVENT_UNREACHED);
    CHECK_EQ(out.events[0].rank, 5);
    CHECK_STR(out.events[0].text, "10.0.0.9:5555: no answer");
}

TEST(a_member_that_the_master_drops_tells_that_and_not_that_the_master_is_lost)
{
    come_up(1000);
    order();
    step((struct member_event){.type = MEMBER_ADOPTED, .digest = 5});
    struct msg msg = {.as.refuse = {.rc = SOLO_EREFUSED, .retry_ms = 300}};
    strcpy(msg.as.refuse.text, "the master dropped this node: silent for 10 s");
    list(true);
    tell(FRAME_REFUSE, &msg);
    CHECK_EQ(out.events[0].kind, EVENT_DROPPED);
    CHECK_HAS(out.events[0].text, "silent for 10 s");
}
