/* Collectives and messages of a group. Ranks that are processes, and die, are in tests/py. */
#include "group_kit.h"
#include "kernels/convert.h"

static void check_sums(struct solo_group *group, uint32_t rank, uint32_t size)
{
    static const uint64_t counts[] = {0, 1, 100, 16384, 16400, 500000};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        float *values = malloc(counts[c] * sizeof *values + 1);
        fill(values, counts[c], (float)rank);
        struct solo_part part = {values, counts[c]};
        struct solo_op op = allreduce(&part);
        CHECK_EQ(solo_group_run(group, &op, 1, 0), 0);
        for (uint64_t i = 0; i < counts[c]; i++) {
            float want = (float)(size * (i % 7)) + (float)(size * (size - 1) / 2);
            CHECK(values[i] >= want && values[i] <= want);
        }
        free(values);
    }
}

TEST(sums_are_right_over_shared_memory_and_over_tcp)
{
    for (uint32_t size = 1; size <= 5; size++) {
        run(size, 1, 20000, check_sums);
        run(size, size, 20000, check_sums);
    }
    run(4, 2, 20000, check_sums);
}

/* Values whose fp32 sums are exact and whose bf16 sums are not. */
static uint16_t small_value(uint32_t rank, uint64_t index)
{
    float value = (float)((rank * 37 + index * 11) % 251) + 128.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float wide(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_halves(struct solo_group *group, uint32_t rank, uint32_t size)
{
    static const uint64_t counts[] = {0, 1, 100, 16400, 700001};
    static const enum solo_reduce reduces[] = {SOLO_REDUCE_SUM, SOLO_REDUCE_AVG, SOLO_REDUCE_MAX,
                                               SOLO_REDUCE_PREMUL};
    for (size_t c = 0; c < 4 * sizeof counts / sizeof *counts; c++) {
        uint64_t count = counts[c / 4];
        enum solo_reduce reduce = reduces[c % 4];
        uint16_t *values = malloc(count * sizeof *values + 1);
        for (uint64_t i = 0; i < count; i++) {
            values[i] = small_value(rank, i);
        }
        struct solo_part part = {values, count};
        struct solo_op op = allreduce(&part);
        op.dtype = SOLO_BF16;
        op.reduce = reduce;
        op.factor = 0.5;
        CHECK_EQ(solo_group_run(group, &op, 1, 0), 0);
        for (uint64_t i = 0; i < count; i++) {
            float sum = 0, most = 0;
            for (uint32_t r = 0; r < size; r++) {
                float value = wide(small_value(r, i));
                sum += value;
                most = value > most ? value : most;
            }
            sum = reduce == SOLO_REDUCE_AVG      ? sum * (1.0f / (float)size)
                  : reduce == SOLO_REDUCE_PREMUL ? sum * 0.5f
                  : reduce == SOLO_REDUCE_MAX    ? most
                                                 : sum;
            uint16_t want;
            convert_from_f32(&want, &sum, SOLO_BF16, 1);
            CHECK_EQ(values[i], want);
        }
        free(values);
    }
}

/* Inside a host first or not: fp32 until all are added. */
TEST(sums_of_halves_are_rounded_once_wherever_the_ranks_are)
{
    run(4, 1, 20000, check_halves);
    run(4, 2, 20000, check_halves);
    run(6, 3, 20000, check_halves);
    run(8, 2, 20000, check_halves);
    run(5, 2, 20000, check_halves); /* hosts of two sizes */
}

static void check_others(struct solo_group *group, uint32_t rank, uint32_t size)
{
    enum { COUNT = 30011 };
    struct solo_part in[RANKS_MAX], out[RANKS_MAX];
    for (uint32_t i = 0; i < size; i++) {
        in[i] = (struct solo_part){malloc(COUNT * sizeof(float)), COUNT};
        out[i] = (struct solo_part){malloc(COUNT * sizeof(float)), COUNT};
        fill(in[i].bytes, COUNT, (float)(rank * 10 + i));
    }
    struct solo_op all = {.kind = SOLO_OP_ALLTOALL,
                          .dtype = SOLO_F32,
                          .in = in,
                          .out = out,
                          .in_count = size,
                          .out_count = size};
    struct solo_op cast = {
        .kind = SOLO_OP_BROADCAST, .dtype = SOLO_F32, .root = size - 1, .out = in, .out_count = 1};
    struct solo_op ops[] = {all, cast};
    CHECK_EQ(solo_group_run(group, ops, 2, 0), 0);
    for (uint32_t i = 0; i < size; i++) {
        const float *got = out[i].bytes;
        float want = (float)(i * 10 + rank);
        CHECK(got[0] >= want && got[0] <= want && got[COUNT - 1] >= want);
    }
    const float *cast_got = in[0].bytes;
    CHECK(cast_got[0] >= (float)(size - 1) * 10 && cast_got[0] <= (float)(size - 1) * 10);
    for (uint32_t i = 0; i < size; i++) {
        free(in[i].bytes);
        free(out[i].bytes);
    }
}

TEST(parts_go_where_they_belong)
{
    run(3, 1, 20000, check_others);
    run(3, 3, 20000, check_others);
}

static void check_messages(struct solo_group *group, uint32_t rank, uint32_t size)
{
    static const uint64_t sizes[] = {0, 8, 4096, 4097, 100000, 700000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct latch sent, received;
        latch_init(&sent);
        latch_init(&received);
        uint8_t *out = malloc(sizes[i] + 1), *in = malloc(sizes[i] + 1);
        memset(out, (int)rank + 1, sizes[i] + 1);
        uint32_t after = (rank + 1) % size, before = (rank + size - 1) % size;
        CHECK_EQ(solo_group_send(group, after, 5, out, sizes[i], 0, set_latch, &sent), 0);
        CHECK_EQ(solo_group_receive(group, before, 5, in, sizes[i], 0, set_latch, &received), 0);
        int rc = -1;
        CHECK(latch_wait(&sent, clock_us() + 10000000, &rc));
        CHECK_EQ(rc, 0);
        CHECK(latch_wait(&received, clock_us() + 10000000, &rc));
        CHECK_EQ(rc, 0);
        CHECK(sizes[i] == 0 || (in[0] == before + 1 && in[sizes[i] - 1] == before + 1));
        latch_deinit(&sent);
        latch_deinit(&received);
        free(in);
        free(out);
    }
}

TEST(messages_go_round_in_a_circle)
{
    run(3, 1, 20000, check_messages);
    run(3, 3, 20000, check_messages);
    run(4, 2, 20000, check_messages);
}

/* ---- what must not pass, or hang ------------------------------------------------------------------ */

static void set_flag(void *context, int rc, const char *text, uint32_t source)
{
    (void)text;
    (void)source;
    CHECK_EQ(rc, 0);
    atomic_store((atomic_bool *)context, true);
}

static void receive_now(struct solo_group *group, uint32_t from)
{
    uint8_t byte = 0;
    struct latch latch;
    latch_init(&latch);
    CHECK_EQ(solo_group_receive(group, from, 7, &byte, 1, 0, set_latch, &latch), 0);
    int rc = -1;
    CHECK(latch_wait(&latch, clock_us() + 10000000, &rc));
    CHECK_EQ(rc, 0);
    latch_deinit(&latch);
}

/* The first message makes the link, its answer says that it stands. The group's thread may be just
 * looking at what is posted, and then it is that which sends: seldom. */
static void check_at_once(struct solo_group *group, uint32_t rank, uint32_t size)
{
    static uint8_t byte = 1;
    atomic_bool sent[20] = {false};
    int at_once = 0;
    (void)size;
    for (int i = 0; i < 20; i++) {
        if (rank == 1) {
            receive_now(group, 0);
        }
        CHECK_EQ(solo_group_send(group, 1 - rank, 7, &byte, 1, 0, set_flag, &sent[i]), 0);
        at_once += atomic_load(&sent[i]);
        if (rank == 0) {
            receive_now(group, 1);
        }
    }
    for (int i = 0; i < 20; i++) {
        while (!atomic_load(&sent[i])) {
            usleep(100);
        }
    }
    CHECK(at_once > 0);
}

TEST(a_short_message_has_gone_out_when_its_call_returns)
{
    run(2, 1, 20000, check_at_once);
    run(2, 2, 20000, check_at_once);
}

static void check_mismatch(struct solo_group *group, uint32_t rank, uint32_t size)
{
    static float values[RANKS_MAX][200000];
    struct solo_part part = {values[rank], rank == 1 ? 200000 : 1000};
    struct solo_op op = allreduce(&part);
    (void)size;
    CHECK_EQ(solo_group_run(group, &op, 1, 0), SOLO_EMISMATCH);
    CHECK_HAS(solo_error_text(), "1000 float32");
    CHECK_HAS(solo_error_text(), "200000 float32");
    CHECK_EQ(solo_group_run(group, &op, 1, 0), SOLO_EMISMATCH); /* and so for ever */
    CHECK_EQ(solo_group_health(group), SOLO_EMISMATCH);
}

TEST(ranks_that_do_different_things_are_told_both_values)
{
    run(2, 1, 20000, check_mismatch);
    run(3, 1, 20000, check_mismatch);
    run(2, 2, 20000, check_mismatch);
    run(3, 3, 20000, check_mismatch);
}

static void check_late(struct solo_group *group, uint32_t rank, uint32_t size)
{
    struct solo_op barrier = {.kind = SOLO_OP_BARRIER, .dtype = SOLO_BYTES};
    (void)size;
    if (rank == 1) {
        return; /* comes to no barrier */
    }
    CHECK_EQ(solo_group_run(group, &barrier, 1, 200), SOLO_ETIMEDOUT);
    CHECK_HAS(solo_error_text(), "rank 1");
}

TEST(a_rank_that_does_not_come_is_named_at_the_deadline)
{
    run(3, 1, 20000, check_late);
    run(3, 3, 20000, check_late);
}

static void *abort_soon(void *group)
{
    usleep(50000);
    solo_group_abort(group, "enough");
    return NULL;
}

static void check_abort(struct solo_group *group, uint32_t rank, uint32_t size)
{
    struct solo_op barrier = {.kind = SOLO_OP_BARRIER, .dtype = SOLO_BYTES};
    pthread_t thread;
    (void)size;
    if (rank == 2) {
        return;
    }
    if (rank == 0) {
        pthread_create(&thread, NULL, abort_soon, group);
    }
    CHECK_EQ(solo_group_run(group, &barrier, 1, 0), SOLO_EABORTED);
    CHECK_HAS(solo_error_text(), "enough");
    if (rank == 0) {
        pthread_join(thread, NULL);
    }
}

TEST(abort_frees_every_rank_that_waits)
{
    run(3, 1, 20000, check_abort);
    run(3, 3, 20000, check_abort);
}

static void check_arguments(struct solo_group *group, uint32_t rank, uint32_t size)
{
    static float values[RANKS_MAX][8];
    struct solo_part part = {values[rank], 8};
    struct solo_op op = allreduce(&part);
    op.reduce = SOLO_REDUCE_BXOR;
    CHECK_EQ(solo_group_run(group, &op, 1, 0), SOLO_ENOTSUP);
    op = allreduce(&part);
    op.in_count = 0;
    CHECK_EQ(solo_group_run(group, &op, 1, 0), SOLO_EINVAL);
    op = (struct solo_op){
        .kind = SOLO_OP_BROADCAST, .dtype = SOLO_F32, .root = size, .out = &part, .out_count = 1};
    CHECK_EQ(solo_group_run(group, &op, 1, 0), SOLO_EINVAL);
    op = allreduce(&part); /* none of it has broken the group */
    CHECK_EQ(solo_group_run(group, &op, 1, 0), 0);
}

TEST(a_rank_may_be_known_after_its_card)
{
    struct solo_group_config config = {.size = sizeof config, .world = 1, .name = "later"};
    struct solo_group *groups[2];
    char cards[2][SOLO_CARD_MAX];
    const char *texts[] = {cards[0], cards[1]};
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EQ(solo_group_prepare(&config, &groups[i], cards[i]), 0);
        CHECK_EQ(solo_group_place(groups[i], 2, 2), SOLO_EINVAL);
        CHECK_EQ(solo_group_place(groups[i], 0, 1), 0);
    }
    CHECK_EQ(solo_group_connect(groups[0], &texts[0], 0), 0);
    CHECK_EQ(solo_group_place(groups[0], 0, 2), SOLO_EINVAL); /* it is what it is by now */
    solo_group_close(groups[0]);
    solo_group_close(groups[1]);
}

TEST(wrong_arguments_are_told_before_anything_moves)
{
    run(2, 1, 20000, check_arguments);
    run(2, 2, 20000, check_arguments);
}

static void nothing(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)group;
    (void)rank;
    (void)size;
}

static void check_links_of_barriers(struct solo_group *group, uint32_t rank, uint32_t size)
{
    struct solo_op barrier = {.kind = SOLO_OP_BARRIER, .dtype = SOLO_BYTES};
    struct solo_group_figures figures = {.size = sizeof figures};
    (void)rank;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(solo_group_run(group, &barrier, 1, 0), 0);
    }
    solo_group_stats(group, &figures);
    CHECK_EQ(figures.hosts, size);
    CHECK(figures.connections <= 2 * 5);
}

TEST(a_barrier_among_many_hosts_does_not_connect_everybody_with_everybody)
{
    run(20, 20, 20000, check_links_of_barriers);
}

TEST(groups_come_and_go)
{
    for (int i = 0; i < 50; i++) {
        run(2, 1, 20000, nothing);
    }
    for (int i = 0; i < 10; i++) {
        run(2, 2, 20000, nothing);
    }
}

TEST(a_rank_that_never_comes_is_named_when_the_group_opens)
{
    struct solo_group_config config = {.size = sizeof config, .world = 2, .timeout_ms = 200};
    struct solo_group *group, *other;
    char cards[2][SOLO_CARD_MAX];
    const char *both[] = {cards[0], cards[1]};
    CHECK_EQ(solo_group_prepare(&config, &group, cards[0]), 0);
    config.rank = 1;
    CHECK_EQ(solo_group_prepare(&config, &other, cards[1]), 0);
    CHECK_EQ(solo_group_connect(group, both, 0), SOLO_ETIMEDOUT);
    CHECK_HAS(solo_error_text(), "rank 1");
    solo_group_close(group);
    solo_group_close(other);
}
