#include "check.h"
#include "wire/msg.h"

static uint8_t bytes[FRAME_TABLE_MAX];

static int trip(const struct msg *msg, struct msg *back)
{
    int size = msg_encode(msg, bytes, sizeof bytes);
    CHECK(size >= 0);
    CHECK_EQ(msg_decode(msg->type, bytes, (size_t)size, back), 0);
    return size;
}

static void fill_identity(struct msg_identity *identity, uint32_t rank)
{
    identity->node_rank = rank;
    identity->device_count = 2;
    identity->instance = 1000 + rank;
    snprintf(identity->name, sizeof identity->name, "node%u", rank);
    snprintf(identity->address, sizeof identity->address, "10.0.0.%u:29500", rank);
}

TEST(a_join_comes_back_with_all_it_says)
{
    struct msg msg = {.type = FRAME_JOIN}, back;
    struct msg_join *join = &msg.as.join;
    strcpy(join->job_id, "train");
    fill_identity(&join->identity, 3);
    strcpy(join->settings.interval, "0:1,500:16");
    join->settings.elements[SOLO_MAX] = 12;
    join->held = (struct msg_held){true, 7, 99, 700};
    join->returning = join->pending = true;
    join->doubt = (struct round_id){{5, 6}, 8, 2};
    join->epoch_count = 2;
    join->epoch_ranks[1] = 3;
    trip(&msg, &back);
    CHECK_STR(back.as.join.settings.interval, "0:1,500:16");
    CHECK_STR(back.as.join.identity.address, "10.0.0.3:29500");
    CHECK_EQ(back.as.join.settings.elements[SOLO_MAX], 12);
    CHECK(back.as.join.held.held && back.as.join.returning && !back.as.join.founder);
    CHECK(round_id_equal(back.as.join.doubt, join->doubt));
    CHECK_EQ(back.as.join.epoch_ranks[1], 3);
}

TEST(a_full_member_list_fits_its_limit)
{
    static struct msg_members members, members_back;
    members.listed_count = 200;
    members.count = SOLO_MEMBERS_MAX;
    for (uint32_t i = 0; i < members.count; i++) {
        struct msg_identity *identity = &members.rows[i].identity;
        fill_identity(identity, i);
        memset(identity->name, 'n', MSG_TEXT_MAX - 1);
        memset(identity->address, 'a', MSG_TEXT_MAX - 1);
        identity->name[MSG_TEXT_MAX - 1] = identity->address[MSG_TEXT_MAX - 1] = 0;
    }
    members.gone_count = MSG_GONE_MAX;
    for (uint32_t i = 0; i < MSG_GONE_MAX; i++) {
        memset(members.gone[i].text, 'w', MSG_TEXT_MAX - 1);
    }
    struct msg msg = {.type = FRAME_MEMBERS, .table = {&members}}, back;
    back.table.members = &members_back;
    CHECK(trip(&msg, &back) <= (int)FRAME_TABLE_MAX);
    CHECK_EQ(members_back.count, SOLO_MEMBERS_MAX);
    CHECK(members_back.rows[199].listed && !members_back.rows[200].listed);
    CHECK_EQ(strlen(members_back.rows[255].identity.name), MSG_TEXT_MAX - 1);
    CHECK_EQ(strlen(members_back.gone[MSG_GONE_MAX - 1].text), MSG_TEXT_MAX - 1);
}

TEST(a_full_status_fits_its_limit)
{
    static struct msg_status status, status_back;
    status.count = SOLO_MEMBERS_MAX;
    for (uint32_t i = 0; i < status.count; i++) {
        struct msg_status_row *row = &status.rows[i];
        fill_identity(&row->identity, i);
        memset(row->identity.name, 'n', MSG_TEXT_MAX - 1);
        memset(row->identity.address, 'a', MSG_TEXT_MAX - 1);
        memset(row->left, 'l', MSG_TEXT_MAX - 1);
        row->standing = STANDING_LOST;
    }
    struct msg msg = {.type = FRAME_STATUS, .table = {.status = &status}}, back;
    back.table.status = &status_back;
    CHECK(trip(&msg, &back) <= (int)FRAME_TABLE_MAX);
    CHECK_EQ(status_back.rows[255].standing, STANDING_LOST);
}

TEST(a_begin_carries_weights_and_means_bit_for_bit)
{
    struct msg msg = {.type = FRAME_BEGIN}, back;
    struct msg_begin *begin = &msg.as.begin;
    begin->id = (struct round_id){{1, 2}, 3, 4};
    begin->count = SOLO_MEMBERS_MAX;
    begin->weights[255] = UINT64_MAX;
    begin->lr_sum = 0.1 + 0.2;
    begin->steps = 1e-300;
    CHECK(trip(&msg, &back) <= (int)FRAME_MESSAGE_MAX);
    CHECK(back.as.begin.lr_sum == 0.1 + 0.2 && back.as.begin.steps == 1e-300);
    CHECK(back.as.begin.weights[255] == UINT64_MAX);
}

static const enum frame_type messages[] = {
    FRAME_JOIN,      FRAME_ADMIT,     FRAME_REFUSE,        FRAME_MEMBERS, FRAME_READY,
    FRAME_BEGIN,     FRAME_DONE,      FRAME_FAULT,         FRAME_COMMIT,  FRAME_ABORT,
    FRAME_SUMMON,    FRAME_HEARTBEAT, FRAME_HEARTBEAT_ACK, FRAME_LEAVE,   FRAME_CATCHUP,
    FRAME_CAUGHT_UP, FRAME_END,       FRAME_STATUS_ASK,    FRAME_STATUS,  FRAME_LINK,
};
#define MESSAGES (sizeof messages / sizeof *messages)

static struct msg blank(enum frame_type type)
{
    static struct msg_members members;
    static struct msg_status status;
    memset(&members, 0, sizeof members);
    memset(&status, 0, sizeof status);
    struct msg msg;
    memset(&msg, 0, sizeof msg);
    msg.type = type;
    if (type == FRAME_MEMBERS) {
        msg.table.members = &members;
    } else if (type == FRAME_STATUS) {
        msg.table.status = &status;
    } else if (type == FRAME_FAULT) {
        msg.as.fault.kind = FAULT_LINK;
    }
    return msg;
}

TEST(a_message_cut_anywhere_or_too_long_is_refused)
{
    for (size_t i = 0; i < MESSAGES; i++) {
        struct msg msg = blank(messages[i]), back = blank(messages[i]);
        int size = trip(&msg, &back);
        for (int cut = 0; cut < size; cut++) {
            CHECK_EQ(msg_decode(messages[i], bytes, (size_t)cut, &back), SOLO_EPEER);
        }
        bytes[size] = 0;
        CHECK_EQ(msg_decode(messages[i], bytes, (size_t)size + 1, &back), SOLO_EPEER);
    }
}

TEST(a_count_over_its_limit_is_refused)
{
    struct msg msg = blank(FRAME_CATCHUP), back;
    int size = trip(&msg, &back);
    bytes[size - 4] = MSG_DONORS_MAX + 1;
    CHECK_EQ(msg_decode(FRAME_CATCHUP, bytes, (size_t)size, &back), SOLO_EPEER);
}

TEST(a_kind_or_truth_value_that_does_not_exist_is_refused)
{
    struct msg msg = blank(FRAME_FAULT), back;
    int size = trip(&msg, &back);
    bytes[24] = 99; /* after the round's id */
    CHECK_EQ(msg_decode(FRAME_FAULT, bytes, (size_t)size, &back), SOLO_EPEER);
    msg = blank(FRAME_LEAVE);
    size = trip(&msg, &back);
    bytes[0] = 2;
    CHECK_EQ(msg_decode(FRAME_LEAVE, bytes, (size_t)size, &back), SOLO_EPEER);
}

TEST(frames_that_carry_no_message_do_not_decode)
{
    struct msg back;
    CHECK_EQ(msg_decode(FRAME_DELTA, bytes, 0, &back), SOLO_EPEER);
    CHECK_EQ(msg_decode((enum frame_type)0, bytes, 0, &back), SOLO_EPEER);
    CHECK_EQ(msg_decode((enum frame_type)200, bytes, 0, &back), SOLO_EPEER);
}

static void print_field(void *context, const char *name, const char *kind)
{
    printf("%s %s %s\n", (const char *)context, name, kind);
}

/* docs/wire.md is compared with these lines. */
TEST(every_message_can_name_its_fields)
{
    for (size_t i = 0; i < MESSAGES; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", frame_name(messages[i]));
        printf("%s %u %u\n", name, (unsigned)messages[i], frame_size_max(messages[i]));
        CHECK_EQ(msg_describe(messages[i], print_field, name), 0);
    }
}

/* A member has room for a list of members: a status, whose rows are larger, must not go there. */
TEST(a_table_of_a_kind_that_is_not_awaited_is_refused)
{
    static struct msg_members members;
    static struct msg_status status;
    status.count = 1;
    struct msg msg = {.type = FRAME_STATUS, .table = {.status = &status}};
    int size = msg_encode(&msg, bytes, sizeof bytes);
    CHECK(size > 0);
    struct msg back = {.table = {.members = &members}};
    CHECK_EQ(msg_decode(FRAME_STATUS, bytes, (size_t)size, &back), SOLO_EPEER);
    struct msg neither = {0};
    CHECK_EQ(msg_decode(FRAME_MEMBERS, bytes, 0, &neither), SOLO_EPEER);
}
