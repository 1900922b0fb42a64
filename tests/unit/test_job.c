#include <sys/mman.h>
#include <unistd.h>

#include "job_kit.h"

TEST(averaging_in_fp32_gives_every_member_the_mean)
{
    for (uint32_t count = 1; count <= MEMBERS_MAX; count++) {
        struct rng rng = {count};
        open_members(count, "fp32", "avg");
        for (uint64_t round = 0; round < 3; round++) {
            train(&rng);
            float want[100];
            for (int i = 0; i < 100; i++) {
                double sum = 0;
                for (uint32_t m = 0; m < count; m++) {
                    sum += floats(m, 4)[i * 1000];
                }
                want[i] = (float)(sum / count);
            }
            begin(count, NULL, round > 0, round);
            exchange(count);
            apply(count);
            for (uint32_t m = 0; m < count; m++) {
                for (int i = 0; i < 100; i++) {
                    CHECK(fabsf(floats(m, 4)[i * 1000] - want[i]) < 1e-5f);
                }
                CHECK_EQ(*(int64_t *)members[m].data[6], (int64_t)(round + 1) * count);
            }
        }
        close_members();
    }
}

TEST(members_hold_the_same_bits_with_every_codec_and_rule)
{
    static const char *const codecs[] = {"fp32", "bf16", "int8"};
    static const char *const rules[] = {"avg", "nesterov", "slowmo"};
    for (int c = 0; c < 3; c++) {
        for (int r = 0; r < 3; r++) {
            struct rng rng = {7};
            open_members(3, codecs[c], rules[r]);
            for (uint64_t round = 0; round < 3; round++) {
                train(&rng);
                begin(3, NULL, round > 0, round);
                exchange(3);
                apply(3);
                for (uint32_t m = 1; m < 3; m++) {
                    for (int t = 0; t < TENSORS; t++) {
                        CHECK(memcmp(members[m].data[t], members[0].data[t],
                                     counts[t] * solo_dtype_bytes(dtypes[t])) == 0);
                    }
                }
            }
            close_members();
        }
    }
}

TEST(chunks_in_a_links_memory_give_the_same_bits_as_those_that_wait)
{
    uint64_t digests[2];
    for (int in_place = 0; in_place < 2; in_place++) {
        struct rng rng = {21};
        open_members(2, "fp32", "nesterov");
        CHECK(job_lends(&members[0].job));
        for (uint64_t round = 0; round < 2; round++) {
            train(&rng);
            begin(2, NULL, round > 0, round);
            if (in_place) {
                exchange_in_place();
            } else {
                exchange(2);
            }
            apply(2);
        }
        digests[in_place] = members[0].job.digest;
        close_members();
    }
    CHECK(digests[0] == digests[1]);
}

/* The link may write over its memory then. */
TEST(what_was_not_sent_or_summed_from_a_links_memory_is_kept)
{
    static uint8_t memory[PLAN_CHUNK_ELEMENTS_MAX * 8];
    open_members(2, "fp32", "avg");
    for (int i = 0; i < 100; i++) {
        floats(0, 0)[i] = 1.0f;
        floats(1, 0)[i] = 3.0f;
    }
    begin(2, NULL, false, 0);
    struct job *owner = &members[0].job, *other = &members[1].job; /* chunk 0 is member 0's */
    CHECK_EQ(job_encode(other, 0, memory), 0);
    job_keep(other);
    memset(memory, 0xff, sizeof memory);
    uint32_t size;
    float sent;
    memcpy(&sent, job_delta(other, 0, &size), sizeof sent);
    CHECK(sent == -3.0f);
    memcpy(memory, job_delta(other, 0, &size), size);
    CHECK_EQ(job_take_delta(owner, 1, 0, memory), 0);
    job_keep(owner);
    memset(memory, 0xff, sizeof memory);
    CHECK_EQ(job_reduce(owner, 0, NULL), 0);
    memcpy(&sent, job_mean(owner, 0, &size), sizeof sent);
    CHECK(sent == -2.0f);
    close_members();
}

static bool is_at_hand(const struct area *area)
{
    static unsigned char there[1024];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (area->size + page - 1) / page;
    CHECK(pages > 0 && pages <= sizeof there);
    CHECK_EQ(mincore(area->base, area->size, there), 0);
    for (size_t i = 0; i < pages; i++) {
        if (!(there[i] & 1)) {
            return false;
        }
    }
    return true;
}

/* Where chunks may have to wait too: the first rounds would stop there for a huge page now and then.
 * A round without the other member does not give it up. */
TEST(what_a_round_of_two_needs_is_at_hand_before_it)
{
    struct area probe;
    CHECK_EQ(area_open(&probe, 1, "a page"), 0);
    area_populate(&probe);
    bool populates = is_at_hand(&probe); /* since Linux 5.14 */
    area_close(&probe);
    open_members(2, "fp32", "avg");
    for (uint32_t m = 0; m < 2; m++) {
        CHECK_EQ(job_warm(&members[m].job), 0);
    }
    begin(1, NULL, false, 0);
    begin(2, NULL, false, 1);
    for (uint32_t m = 0; m < 2 && populates; m++) {
        CHECK(is_at_hand(&members[m].job.inbox));
        CHECK(is_at_hand(&members[m].job.mean));
        CHECK(is_at_hand(&members[m].job.next_theta));
    }
    close_members();
}

/* They would not be at an address that is one of theirs. */
TEST(integers_are_never_used_where_a_link_has_them)
{
    static _Alignas(8) uint8_t memory[4 + 3 * sizeof(int64_t)];
    open_members(2, "fp32", "avg");
    *(int64_t *)members[0].data[6] = *(int64_t *)members[1].data[6] = 10;
    begin(2, NULL, false, 0);
    const struct plan *plan = &members[0].job.round.plan;
    uint32_t chunk = plan->chunk_count - 1, slot = plan_owner(plan, chunk), size;
    struct job *owner = &members[slot].job, *other = &members[1 - slot].job;
    CHECK_EQ(job_encode(other, chunk, NULL), 0);
    const void *sent = job_delta(other, chunk, &size);
    CHECK_EQ(size, sizeof memory - 4);
    memcpy(memory + 4, sent, size);
    CHECK_EQ(job_take_delta(owner, 1 - slot, chunk, memory + 4), 0);
    memset(memory, 0x7f, sizeof memory);
    CHECK_EQ(job_reduce(owner, chunk, NULL), 0);
    int64_t most;
    memcpy(&most, job_mean(owner, chunk, &size), sizeof most);
    CHECK_EQ(most, 10);
    close_members();
}

TEST(the_codecs_that_find_their_residual_from_the_deltas_lend_nothing)
{
    open_members(2, "int8", "avg");
    CHECK(!job_lends(&members[0].job));
    close_members();
}

/* What int8 loses in one round is sent in the next ones: the sum over rounds is right. */
TEST(what_a_codec_loses_comes_back_in_later_rounds)
{
    open_members(2, "int8", "avg");
    struct rng rng = {3};
    double moved = 0;
    for (uint64_t round = 0; round < 20; round++) {
        for (uint32_t m = 0; m < 2; m++) {
            for (uint64_t i = 0; i < counts[4]; i++) {
                floats(m, 4)[i] += i % 256 == 0 ? 1.0f : 0.003f; /* 0.003 is below half a code */
            }
        }
        moved += 0.003;
        (void)rng;
        begin(2, NULL, round > 0, round);
        exchange(2);
        apply(2);
    }
    CHECK(fabs(floats(0, 4)[5] - moved) < 0.008);
    close_members();
}

TEST(a_round_that_is_not_applied_changes_nothing)
{
    struct rng rng = {11};
    open_members(3, "int8", "nesterov");
    train(&rng);
    begin(3, NULL, false, 0);
    exchange(3);
    apply(3);
    train(&rng);
    uint64_t digest = members[0].job.digest;
    begin(3, NULL, true, 1);
    exchange(3); /* and the third member is lost here */
    CHECK(job_hash(&members[0].job) == digest);
    begin(2, NULL, false, 1);
    exchange(2);
    apply(2);
    CHECK(members[0].job.digest != digest);
    CHECK(job_hash(&members[2].job) == digest);
    close_members();
}

TEST(a_member_of_weight_zero_takes_the_others_mean)
{
    open_members(3, "fp32", "avg");
    for (uint32_t m = 0; m < 3; m++) {
        floats(m, 4)[0] = m == 2 ? NAN : 4.0f + 4.0f * (float)m;
    }
    const float weights[] = {0.25f, 0.75f, 0};
    begin(3, weights, false, 0);
    exchange(3);
    apply(3);
    CHECK(floats(2, 4)[0] == 7.0f);
    close_members();
}

TEST(a_value_that_is_not_finite_is_told_by_the_tensors_name)
{
    open_members(2, "int8", "avg");
    floats(0, 4)[counts[4] - 1] = INFINITY; /* of the other's shard */
    begin(2, NULL, false, 0);
    struct job *job = &members[0].job;
    int rc = 0;
    for (uint32_t chunk = 0; chunk < job->round.plan.chunk_count && rc == 0; chunk++) {
        rc = job_encode(job, chunk, NULL);
    }
    CHECK_EQ(rc, SOLO_ENONFINITE);
    CHECK_STR(solo_error_text(), "big");
    floats(0, 4)[counts[4] - 1] = 0;
    floats(0, 0)[5] = NAN; /* of its own: found when it is summed */
    encode_and_send(1);
    CHECK_EQ(job_reduce(job, 0, NULL), SOLO_ENONFINITE);
    CHECK_STR(solo_error_text(), "a");
    close_members();
}

TEST(frames_of_another_size_chunk_or_slot_are_a_peers_fault)
{
    open_members(2, "fp32", "avg");
    begin(2, NULL, false, 0);
    struct job *job = &members[0].job;
    void *room;
    uint32_t size, last = job->round.plan.chunk_count - 1;
    (void)job_mean(job, 0, &size);
    CHECK_EQ(job_room_delta(job, 1, 0, size, &room), 0);
    CHECK_EQ(job_room_delta(job, 1, 0, size - 1, &room), SOLO_EPEER);
    CHECK_EQ(job_room_delta(job, 0, 0, size, &room), SOLO_EPEER);
    CHECK_EQ(job_room_delta(job, 2, 0, size, &room), SOLO_EPEER);
    CHECK_EQ(job_room_delta(job, 1, last + 1, size, &room), SOLO_EPEER);
    (void)job_mean(job, last, &size);
    CHECK_EQ(job_room_delta(job, 1, last, size, &room), SOLO_EPEER);
    CHECK_EQ(job_room_mean(job, last, size, &room), 0);
    (void)job_mean(job, 0, &size);
    CHECK_EQ(job_room_mean(job, 0, size, &room), SOLO_EPEER);
    close_members();
}

static void fetch(struct job *to, const struct job *from)
{
    for (uint32_t chunk = 0; chunk < from->state_plan.chunk_count; chunk++) {
        for (int momentum = 0; momentum < 2; momentum++) {
            uint32_t size;
            void *room;
            const void *bytes = job_state(from, chunk, momentum, &size);
            if (bytes) {
                CHECK_EQ(job_room_state(to, chunk, momentum, size, &room), 0);
                memcpy(room, bytes, size);
            }
        }
    }
}

TEST(a_joiner_fetches_anchor_and_momentum_beside_what_it_holds)
{
    struct rng rng = {5};
    open_members(3, "fp32", "nesterov");
    train(&rng);
    begin(2, NULL, false, 0);
    exchange(2);
    apply(2);
    struct job *joiner = &members[2].job;
    uint64_t digest = joiner->digest;
    fetch(joiner, &members[0].job);
    CHECK(job_hash(joiner) == digest); /* what it held is whole until the end */
    WALK(job_fetch_hash(joiner));
    CHECK(job_fetch_end(joiner, 12345) == members[0].job.digest);
    CHECK(joiner->digest == digest);
    CHECK(job_fetch_end(joiner, members[0].job.digest) == members[0].job.digest);
    CHECK(joiner->digest == members[0].job.digest);
    WALK(job_give_values(joiner, members[2].data));
    CHECK(memcmp(members[2].data[4], members[0].data[4], counts[4] * 4) == 0);
    begin(3, NULL, false, 1);
    exchange(3);
    apply(3);
    close_members();
}

/* Heartbeats pass in between: the whole of a large model takes longer than a lease. */
TEST(a_walk_through_a_models_values_takes_a_block_a_call)
{
    struct rng rng = {6};
    open_members(2, "fp32", "nesterov");
    train(&rng);
    struct job *job = &members[0].job;
    uint64_t blocks = job->blocks[LAYOUT_SECTIONS];
    CHECK(blocks > 3);
    uint64_t calls = 1;
    while (!job_take_values(job, members[0].data)) {
        calls++;
    }
    CHECK_EQ(calls, blocks);
    uint64_t digest = job->digest;
    CHECK(digest == job_hash(job));
    for (uint64_t i = 0; i < blocks - 1; i++) {
        CHECK(!job_give_values(job, members[1].data));
    }
    CHECK(job_give_values(job, members[1].data));
    CHECK(!job_take_values(job, members[1].data)); /* one that is not finished */
    job_walk_drop(job);
    fetch(&members[1].job, job);
    for (uint64_t i = 0; i < blocks - 1; i++) {
        CHECK(!job_fetch_hash(&members[1].job));
    }
    CHECK(job_fetch_hash(&members[1].job));
    CHECK(job_fetch_end(&members[1].job, digest) == digest);
    close_members();
}
