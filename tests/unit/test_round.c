#include "check.h"
#include "protocol/bits.h"
#include "protocol/round.h"

#define MEMBERS_MAX 5u

/* Members of one round, wired directly: every action is carried out as soon as it is given. */
struct table {
    uint32_t count;
    struct round rounds[MEMBERS_MAX];
    void *memory[MEMBERS_MAX];
    uint32_t deltas, means, reduces;
    uint32_t most_encoded;
};

static struct table table;
static struct out outs[MEMBERS_MAX];

static void carry_out(uint32_t slot);

static void begin(uint32_t count, uint64_t elements, const uint64_t *weights)
{
    struct plan_model model = {{elements, 0, 0, 0}};
    struct msg_begin order = {.id = {{1, 1}, 1, 1}, .count = count, .stall_ms = 1000};
    memcpy(order.weights, weights, count * sizeof *weights);
    for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
        free(table.memory[i]);
    }
    memset(&table, 0, sizeof table);
    table.count = count;
    for (uint32_t i = 0; i < count; i++) {
        table.memory[i] = malloc(round_memory_bytes(&model));
        round_begin(&table.rounds[i], &order, &model, i, table.memory[i], 0);
        for (uint32_t j = 0; j < count; j++) {
            table.rounds[i].slot_peers[j] = j == i ? ROUND_SELF : j;
            round_link(&table.rounds[i], j, j != i);
        }
    }
}

static void pump(uint32_t slot)
{
    out_clear(&outs[slot]);
    round_pump(&table.rounds[slot], &outs[slot]);
    carry_out(slot);
}

static void give(uint32_t from, uint32_t to, enum frame_type type, uint32_t chunk)
{
    struct out out;
    CHECK_EQ(round_take(&table.rounds[to], from, type, chunk), TAKE_HERE);
    out_clear(&out);
    round_received(&table.rounds[to], from, type, chunk, &out);
    CHECK_EQ(round_take(&table.rounds[to], from, type, chunk), TAKE_FAULT); /* not twice */
    for (uint32_t i = 0; i < out.count; i++) {
        CHECK_EQ(out.actions[i].type, ACTION_REDUCE);
        table.reduces++;
        round_reduced(&table.rounds[to], out.actions[i].chunk);
    }
    round_sent(&table.rounds[from], to, type);
    pump(to);
}

static void carry_out(uint32_t slot)
{
    struct out mine = outs[slot];
    struct round *round = &table.rounds[slot];
    for (uint32_t i = 0; i < mine.count; i++) {
        struct action *action = &mine.actions[i];
        struct out out;
        out_clear(&out);
        if (action->type == ACTION_ENCODE) {
            table.most_encoded =
                round->encoded > table.most_encoded ? round->encoded : table.most_encoded;
            round_encoded(round, action->chunk, &out);
            if (out.count && out.actions[0].type == ACTION_REDUCE) {
                table.reduces++;
                round_reduced(round, out.actions[0].chunk);
            } else if (out.count) {
                table.deltas++;
                give(slot, out.actions[0].peer, FRAME_DELTA, action->chunk);
            }
        } else if (action->type == ACTION_SEND_MEAN) {
            table.means++;
            give(slot, action->peer, FRAME_MEAN, action->chunk);
        } else if (action->type == ACTION_REDUCE) {
            table.reduces++;
            round_reduced(round, action->chunk);
        }
        pump(slot);
    }
}

static void run(void)
{
    for (uint32_t i = 0; i < table.count; i++) {
        pump(i);
    }
}

TEST(every_chunk_is_reduced_once_and_reaches_every_member)
{
    uint64_t weights[MEMBERS_MAX] = {1, 2, 3, 4, 5};
    for (uint32_t count = 1; count <= MEMBERS_MAX; count++) {
        for (uint64_t elements = 0; elements < 30000; elements = 3 * elements + 100) {
            begin(count, elements, weights);
            run();
            uint32_t chunks = table.rounds[0].plan.chunk_count;
            CHECK_EQ(table.reduces, chunks);
            CHECK_EQ(table.means, chunks * (count - 1));
            CHECK_EQ(table.deltas, chunks * (count - 1));
            for (uint32_t i = 0; i < count; i++) {
                CHECK(round_whole(&table.rounds[i]));
                for (uint32_t j = 0; j < count; j++) {
                    CHECK(j == i || !round_needs(&table.rounds[i], j));
                }
            }
            CHECK(table.most_encoded <= ROUND_ENCODED_MAX);
        }
    }
}

TEST(a_member_of_weight_0_sends_no_delta_and_gets_the_mean)
{
    uint64_t weights[MEMBERS_MAX] = {3, 0, 3};
    begin(3, 5000, weights);
    run();
    CHECK(round_whole(&table.rounds[1]));
    CHECK_EQ(table.rounds[0].contributors, 2);
    CHECK_EQ(table.deltas, 2 * table.rounds[0].plan.chunk_count -
                               plan_owned_count(&table.rounds[0].plan, 0) -
                               plan_owned_count(&table.rounds[0].plan, 2));
}

TEST(a_round_to_which_nobody_contributes_still_ends)
{
    uint64_t weights[MEMBERS_MAX] = {0, 0, 0};
    begin(3, 200000, weights);
    run();
    CHECK_EQ(table.deltas, 0);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(round_whole(&table.rounds[i]));
    }
}

TEST(the_first_chunks_go_to_the_next_slots_first)
{
    uint64_t weights[MEMBERS_MAX] = {1, 1, 1, 1};
    begin(4, 30000, weights);
    out_clear(&outs[1]);
    round_pump(&table.rounds[1], &outs[1]);
    uint32_t owners[4];
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(outs[1].actions[i].type, ACTION_ENCODE);
        owners[i] = plan_owner(&table.rounds[1].plan, outs[1].actions[i].chunk);
    }
    CHECK(owners[0] == 2 && owners[1] == 3 && owners[2] == 0 && owners[3] == 1);
}

TEST(nothing_is_encoded_for_an_owner_without_a_link)
{
    uint64_t weights[MEMBERS_MAX] = {1, 1};
    begin(2, 30000, weights);
    round_link(&table.rounds[0], 1, false);
    out_clear(&outs[0]);
    round_pump(&table.rounds[0], &outs[0]);
    for (uint32_t i = 0; i < outs[0].count; i++) {
        CHECK_EQ(plan_owner(&table.rounds[0].plan, outs[0].actions[i].chunk), 0);
    }
    CHECK(round_needs(&table.rounds[0], 1));
}

TEST(a_member_runs_no_further_ahead_of_an_owner_than_the_window)
{
    uint64_t weights[MEMBERS_MAX] = {1, 1};
    begin(2, 1u << 24, weights);
    struct round *round = &table.rounds[0];
    uint32_t to_other = 0;
    for (uint32_t turn = 0; turn < 1000; turn++) {
        out_clear(&outs[0]);
        round_pump(round, &outs[0]);
        for (uint32_t i = 0; i < outs[0].count; i++) {
            uint32_t chunk = outs[0].actions[i].chunk;
            if (outs[0].actions[i].type == ACTION_ENCODE && plan_owner(&round->plan, chunk) == 1) {
                to_other++;
                round_sent(round, 1, FRAME_DELTA); /* the owner takes them, its means never come */
            }
        }
    }
    CHECK_EQ(to_other, round->plan.window < plan_owned_count(&round->plan, 1)
                           ? round->plan.window
                           : plan_owned_count(&round->plan, 1));
}

static uint32_t pumped_means(struct round *round)
{
    uint32_t means = 0;
    out_clear(&outs[0]);
    round_pump(round, &outs[0]);
    for (uint32_t i = 0; i < outs[0].count; i++) {
        means += outs[0].actions[i].type == ACTION_SEND_MEAN;
    }
    return means;
}

TEST(between_three_a_mean_goes_when_the_deltas_are_out)
{
    uint64_t weights[MEMBERS_MAX] = {1, 1, 1};
    begin(3, 1u << 23, weights);
    struct round *round = &table.rounds[0];
    CHECK_EQ(pumped_means(round), 0);
    round_reduced(round, round->shard.first);
    CHECK_EQ(pumped_means(round), 0); /* both links have plenty to send */
    uint32_t means = 0;
    for (uint32_t turn = 0; turn < 20; turn++) {
        for (uint32_t slot = 1; slot < 3; slot++) {
            while (round->slots[slot].sends > 0) {
                round_sent(round, slot, FRAME_DELTA);
            }
        }
        means += pumped_means(round);
    }
    CHECK_EQ(means, 2);
}

/* Else it is copied aside, and the other side waits for it. */
TEST(a_mean_goes_out_at_once_however_many_deltas_wait_for_a_link)
{
    uint64_t weights[MEMBERS_MAX] = {1, 1};
    begin(2, 100 * 2 * PLAN_CHUNK_ELEMENTS, weights);
    struct round *round = &table.rounds[0];
    struct out out;
    for (uint32_t chunk = 0; chunk < ROUND_SENDS_MAX / 2; chunk++) {
        out_clear(&out);
        round_pump(round, &out); /* what may be encoded for the other, is, and none is sent */
        round_reduced(round, chunk);
        out_clear(&out);
        round_pump(round, &out);
        CHECK_EQ(out.actions[0].type, ACTION_SEND_MEAN);
        CHECK_EQ(out.actions[0].chunk, chunk);
    }
}

TEST(frames_that_no_honest_peer_sends_are_faults)
{
    uint64_t weights[MEMBERS_MAX] = {1, 0, 1};
    begin(3, 30000, weights);
    struct round *round = &table.rounds[0];
    uint32_t own = round->shard.first, of_one = plan_owned_first(&round->plan, 1);
    CHECK_EQ(round_take(round, 1, FRAME_DELTA, own), TAKE_FAULT); /* weight 0 */
    CHECK_EQ(round_take(round, 2, FRAME_DELTA, own), TAKE_HERE);
    CHECK_EQ(round_take(round, 2, FRAME_DELTA, of_one), TAKE_FAULT); /* not my chunk */
    CHECK_EQ(round_take(round, 1, FRAME_MEAN, of_one), TAKE_HERE);
    CHECK_EQ(round_take(round, 2, FRAME_MEAN, of_one), TAKE_FAULT); /* not its chunk */
    CHECK_EQ(round_take(round, 1, FRAME_MEAN, 1u << 30), TAKE_FAULT);
    CHECK_EQ(round_take(round, 0, FRAME_MEAN, own), TAKE_FAULT); /* from myself */
}

TEST(who_keeps_an_owner_waiting_is_named_before_other_owners)
{
    uint64_t weights[MEMBERS_MAX] = {1, 1, 1};
    begin(3, 3000, weights);
    uint8_t owed[MSG_OWED_BYTES] = {0};
    struct out out;
    out_clear(&out);
    for (uint32_t i = 0; i < table.rounds[0].shard.count; i++) {
        round_encoded(&table.rounds[0], table.rounds[0].shard.first + i, &out);
        round_received(&table.rounds[0], 1, FRAME_DELTA, table.rounds[0].shard.first + i, &out);
    }
    CHECK_EQ(round_owed(&table.rounds[0], owed), 1);
    CHECK(bit_is(owed, 2) && !bit_is(owed, 1));
}
