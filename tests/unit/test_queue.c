/* Calls that are posted: their order, and those of several steps. */
#include "group_kit.h"

static void check_order(struct solo_group *group, uint32_t rank, uint32_t size)
{
    enum { POSTS = 50 };
    static float values[RANKS_MAX][POSTS][100];
    struct latch latches[POSTS];
    for (int i = 0; i < POSTS; i++) {
        fill(values[rank][i], 100, (float)i);
        struct solo_part part = {values[rank][i], 100};
        struct solo_op op = allreduce(&part);
        latch_init(&latches[i]);
        CHECK_EQ(solo_group_post(group, &op, 1, 0, set_latch, &latches[i]), 0);
    }
    struct solo_op barrier = {.kind = SOLO_OP_BARRIER, .dtype = SOLO_BYTES};
    CHECK_EQ(solo_group_run(group, &barrier, 1, 0), 0);
    for (int i = 0; i < POSTS; i++) {
        int rc = -1;
        CHECK(latch_wait(&latches[i], clock_us() + 10000000, &rc));
        CHECK_EQ(rc, 0);
        latch_deinit(&latches[i]);
        CHECK(values[rank][i][0] >= (float)(size * (unsigned)i));
    }
}

TEST(posted_calls_are_done_in_order_and_before_an_inline_one)
{
    run(3, 1, 20000, check_order);
    run(3, 3, 20000, check_order);
}

/* Adds 1 to a number three times, each time from what the step before brought. */
struct staircase {
    float value;
    struct solo_part part;
    struct solo_op op;
    uint32_t steps;
    int rc;
    _Atomic bool done;
};

static int climb(void *context, const struct solo_op **ops_out, uint32_t *count_out)
{
    struct staircase *stairs = context;
    stairs->part = (struct solo_part){&stairs->value, 1};
    stairs->op = allreduce(&stairs->part);
    *ops_out = &stairs->op;
    *count_out = stairs->steps < 3 ? 1 : 0;
    return stairs->steps++ < 9 ? 0 : SOLO_ENOMEM;
}

static int stumble(void *context, const struct solo_op **ops_out, uint32_t *count_out)
{
    (void)context, (void)ops_out, (void)count_out;
    return SOLO_ENOMEM;
}

static int trip(void *context, const struct solo_op **ops_out, uint32_t *count_out)
{
    static const struct solo_op none = {.kind = SOLO_OP_ALLREDUCE, .dtype = SOLO_F32};
    (void)context;
    *ops_out = &none;
    *count_out = 1;
    return 0;
}

static void arrive(void *context, int rc, const char *text, uint32_t source)
{
    (void)text, (void)source;
    struct staircase *stairs = context;
    stairs->rc = rc;
    atomic_store(&stairs->done, true);
}

static void await(struct staircase *stairs)
{
    while (!atomic_load(&stairs->done)) {
        usleep(100);
    }
}

static void check_steps(struct solo_group *group, uint32_t rank, uint32_t size)
{
    struct staircase stairs = {.value = 1}, fall = {.value = 1};
    float after = 1;
    struct solo_part part = {&after, 1};
    struct solo_op op = allreduce(&part);
    CHECK_EQ(solo_group_post_steps(group, climb, 0, arrive, &stairs), 0);
    CHECK_EQ(solo_group_run(group, &op, 1, 0), 0); /* behind all of its steps */
    await(&stairs);
    CHECK_EQ(stairs.rc, 0);
    CHECK_EQ((int)stairs.value, (int)(size * size * size));
    pthread_barrier_wait(&world.barrier); /* else it may break what others are in */
    if (rank == 0) {
        CHECK_EQ(solo_group_post_steps(group, stumble, 0, arrive, &fall), 0);
        await(&fall);
        CHECK_EQ(fall.rc, SOLO_ENOMEM);
    }
    CHECK_EQ(solo_group_run(group, &op, 1, 0), SOLO_EABORTED); /* the others are not left waiting */
}

static void check_bad_step(struct solo_group *group, uint32_t rank, uint32_t size)
{
    struct staircase fall = {.value = 1};
    struct solo_part part = {&fall.value, 1};
    struct solo_op op = allreduce(&part);
    (void)size;
    pthread_barrier_wait(&world.barrier); /* all are connected */
    if (rank == 0) {
        CHECK_EQ(solo_group_post_steps(group, trip, 0, arrive, &fall), 0);
        await(&fall);
        CHECK_EQ(fall.rc, SOLO_EINVAL);
    }
    CHECK_EQ(solo_group_run(group, &op, 1, 0), SOLO_EABORTED);
}

TEST(a_step_that_is_no_operation_breaks_the_group_as_well)
{
    run(2, 1, 5000, check_bad_step);
    run(2, 2, 5000, check_bad_step);
}

TEST(a_call_of_several_steps_is_one_call_and_breaks_the_group_if_it_cannot_go_on)
{
    run(2, 1, 20000, check_steps);
    run(3, 3, 20000, check_steps);
}

/* A call whose `done` posts the next one and waits for it, so many deep. */
struct chain {
    struct solo_group *group;
    float value;
    bool ended; /* the next one was waited for with success */
    struct chain *next;
    struct latch latch;
};

static void link_on(void *context, int rc, const char *text, uint32_t source);

static int post_link(struct chain *chain)
{
    chain->value = 1;
    struct solo_part part = {&chain->value, 1};
    struct solo_op op = allreduce(&part);
    return solo_group_post(chain->group, &op, 1, 0, link_on, chain);
}

static void link_on(void *context, int rc, const char *text, uint32_t source)
{
    (void)source;
    struct chain *chain = context, *next = chain->next;
    chain->ended = rc == 0;
    if (next) {
        int rc_next = post_link(next);
        bool told = rc_next == 0 && latch_wait(&next->latch, clock_us() + 10000000, &rc_next);
        chain->ended = chain->ended && told && next->ended;
    }
    latch_set(&chain->latch, rc, text);
}

static void chained(struct solo_group *group, uint32_t rank, uint32_t size)
{
    enum { DEPTH = 4 };
    static struct chain chains[RANKS_MAX][DEPTH];
    struct chain *mine = chains[rank];
    for (int i = 0; i < DEPTH; i++) {
        mine[i] = (struct chain){.group = group, .next = i + 1 < DEPTH ? &mine[i + 1] : NULL};
        latch_init(&mine[i].latch);
    }
    int rc = -1;
    CHECK_EQ(post_link(&mine[0]), 0);
    CHECK(latch_wait(&mine[0].latch, clock_us() + 20000000, &rc));
    for (int i = 0; i < DEPTH; i++) {
        CHECK(mine[i].ended);
        CHECK_EQ(mine[i].value, size);
    }
}

TEST(a_callback_may_wait_for_a_call_that_it_posts)
{
    run(2, 1, 20000, chained);
    run(2, 2, 20000, chained);
}
