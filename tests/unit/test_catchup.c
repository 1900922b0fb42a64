#include "check.h"
#include "protocol/catchup.h"

static struct catchup catchup;
static struct out out;
static struct plan_model model = {{5 * 262144, 100, 300, 10}};
static uint8_t memory[256];

static void begin(void)
{
    struct msg_catchup order = {.version = 7, .digest = 99};
    CHECK(catchup_memory_bytes(&model) <= sizeof memory);
    memset(&catchup, 0, sizeof catchup);
    catchup_begin(&catchup, &order, &model, true, memory, 0);
}

static bool pump(void)
{
    out_clear(&out);
    return catchup_pump(&catchup, &out);
}

static struct frame state_of(const struct action *action)
{
    return (struct frame){.type = FRAME_STATE,
                          .flags = action->kind == STATE_MOMENTUM ? FRAME_MOMENTUM : 0,
                          .round = action->version,
                          .chunk = action->chunk};
}

TEST(anchor_and_momentum_come_from_several_donors_and_are_then_adopted)
{
    begin();
    CHECK_EQ(catchup.total, 8 + 6); /* the momentum is of parameters alone */
    catchup_donor(&catchup, 3, true);
    catchup_donor(&catchup, 5, true);
    uint32_t from[6] = {0}, moves = 0;
    struct action asked[64];
    uint32_t count = 0;
    CHECK(pump());
    while (!catchup.adopting) {
        for (uint32_t i = 0; i < out.count; i++) {
            CHECK_EQ(out.actions[i].type, ACTION_FETCH);
            asked[count++] = out.actions[i];
        }
        CHECK(count > 0);
        struct action action = asked[--count];
        struct frame frame = state_of(&action);
        from[action.peer]++;
        CHECK(catchup_received(&catchup, action.peer, &frame, 1));
        CHECK(!catchup_received(&catchup, action.peer, &frame, 1)); /* once */
        moves++;
        CHECK(pump());
    }
    CHECK_EQ(moves, 14);
    CHECK(from[3] > 0 && from[5] > 0);
    CHECK_EQ(out.actions[0].type, ACTION_ADOPT);
    CHECK_EQ(out.actions[0].version, 7);
}

TEST(a_donor_is_asked_for_few_chunks_at_a_time)
{
    begin();
    catchup_donor(&catchup, 3, true);
    CHECK(pump());
    CHECK_EQ(out.count, CATCHUP_FETCHES_MAX);
    CHECK(pump());
    CHECK_EQ(out.count, 0);
}

TEST(what_a_lost_donor_owed_is_asked_of_another)
{
    begin();
    catchup_donor(&catchup, 3, true);
    CHECK(pump());
    struct action first = out.actions[0];
    catchup_donor(&catchup, 5, true);
    CHECK(pump());
    CHECK_EQ(out.count, CATCHUP_FETCHES_MAX);
    catchup_link(&catchup, 3, false);
    struct frame frame = state_of(&first);
    CHECK(!catchup_received(&catchup, 3, &frame, 1)); /* late: it is lost */
    struct frame other = state_of(&out.actions[0]);
    CHECK(catchup_received(&catchup, 5, &other, 1));
    CHECK(pump());
    CHECK_EQ(out.count, 1);
    CHECK_EQ(out.actions[0].peer, 5);
    CHECK_EQ(out.actions[0].chunk, first.chunk);
}

TEST(without_a_donor_left_it_says_so)
{
    begin();
    CHECK(!pump());
    catchup_donor(&catchup, 3, true);
    CHECK(pump());
    catchup_link(&catchup, 3, false); /* it may come back */
    CHECK(pump());
    catchup_no_state(&catchup, 3);
    CHECK(!pump());
}

TEST(a_silent_donor_is_given_up_and_one_that_gives_is_kept)
{
    begin();
    catchup_donor(&catchup, 3, true);
    CHECK(pump());
    catchup_silent(&catchup);
    CHECK(!pump());
    catchup_donor(&catchup, 5, true);
    CHECK(pump());
    CHECK_EQ(out.actions[0].peer, 5);
}

TEST(chunks_nobody_asked_for_are_not_awaited)
{
    begin();
    catchup_donor(&catchup, 3, true);
    CHECK(pump());
    struct frame frame = state_of(&out.actions[0]);
    CHECK(catchup_awaits(&catchup, 3, &frame));
    CHECK(!catchup_awaits(&catchup, 4, &frame));
    frame.round = 6;
    CHECK(!catchup_awaits(&catchup, 3, &frame));
    frame = (struct frame){.type = FRAME_STATE, .round = 7, .chunk = 1u << 31};
    CHECK(!catchup_awaits(&catchup, 3, &frame));
    frame = (struct frame){.type = FRAME_STATE, .flags = FRAME_MOMENTUM, .round = 7, .chunk = 7};
    CHECK(!catchup_awaits(&catchup, 3, &frame)); /* buffers have no momentum */
}

TEST(its_own_anchor_needs_no_donor)
{
    struct msg_catchup order = {.own = true};
    memset(&catchup, 0, sizeof catchup);
    catchup_begin(&catchup, &order, &model, false, memory, 0);
    CHECK(pump());
    CHECK_EQ(out.actions[0].type, ACTION_ADOPT);
    CHECK(out.actions[0].flag);
}
