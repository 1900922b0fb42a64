/* Between hosts who only sends is done before anybody can refuse it: it is told with its next call. */
#include "group_kit.h"

enum { COUNT = 10 };

enum next { AGAIN, ALLREDUCE, MESSAGE, MONITORED, HEALTH, SHUTDOWN, NEXT_COUNT };

static enum solo_op_kind kind;
static enum next next;
static _Atomic int refused;

static void wait_for_refusal(void)
{
    while (!atomic_load(&refused)) {
        clock_sleep_until(clock_us() + 1000);
    }
}

/* One of those that rank 0 has no answer to. */
static int call_rooted(struct solo_group *group, float *values)
{
    struct solo_part parts[2] = {{values, COUNT}, {values + COUNT, COUNT}};
    bool from = kind == SOLO_OP_BROADCAST || kind == SOLO_OP_SCATTER;
    struct solo_op op = {.kind = kind, .dtype = SOLO_F32, .root = from ? 0 : 1};
    op.in = op.out = parts;
    op.in_count = kind == SOLO_OP_BROADCAST ? 0 : kind == SOLO_OP_SCATTER ? 2 : 1;
    op.out_count = from ? 1 : 0;
    return solo_group_run(group, &op, 1, 0);
}

static int call_allreduce(struct solo_group *group, float *values)
{
    struct solo_part part = {values, COUNT};
    struct solo_op op = allreduce(&part);
    return solo_group_run(group, &op, 1, 0);
}

static int send_message(struct solo_group *group)
{
    struct latch latch;
    latch_init(&latch);
    int rc = solo_group_send(group, 1, 3, "word", 4, 0, set_latch, &latch);
    if (rc == 0) {
        latch_wait(&latch, CLOCK_NEVER, &rc);
    }
    latch_deinit(&latch);
    return rc;
}

static int call_next(struct solo_group *group, float *values)
{
    switch (next) {
    case AGAIN:
        return call_rooted(group, values);
    case ALLREDUCE:
        return call_allreduce(group, values);
    case MESSAGE:
        return send_message(group);
    case MONITORED:
        return solo_group_monitored_barrier(group, 0, 0);
    case HEALTH:
        return solo_group_health(group);
    case SHUTDOWN:
        return solo_group_shutdown(group, 0);
    case NEXT_COUNT:
        break;
    }
    return 0;
}

static void check_text(void)
{
    char name[64];
    snprintf(name, sizeof name, "%s #1 of 10 float32", solo_op_name(kind));
    CHECK_HAS(solo_error_text(), "rank 0 call");
    CHECK_HAS(solo_error_text(), "rank 1 call");
    CHECK_HAS(solo_error_text(), name);
    CHECK_HAS(solo_error_text(), "all_reduce #1 of 10 float32");
}

static void differ(struct solo_group *group, uint32_t rank, uint32_t size)
{
    float values[2 * COUNT] = {0};
    (void)size;
    if (rank == 1) {
        CHECK_EQ(call_allreduce(group, values), SOLO_EMISMATCH);
        check_text();
        atomic_store(&refused, 1);
        return;
    }
    int rc = call_rooted(group, values);
    wait_for_refusal();
    if (rc == 0) { /* else rank 1 came first, and it is told at once */
        rc = call_next(group, values);
    }
    CHECK_EQ(rc, SOLO_EMISMATCH);
    check_text();
    CHECK_EQ(solo_group_health(group), SOLO_EMISMATCH); /* and so for ever */
    CHECK_EQ(solo_group_shutdown(group, 0), 0);         /* it was told */
}

TEST(who_only_sent_is_told_with_its_next_call_that_another_called_another_thing)
{
    static const enum solo_op_kind kinds[] = {SOLO_OP_BROADCAST, SOLO_OP_SCATTER, SOLO_OP_REDUCE,
                                              SOLO_OP_GATHER};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (next = AGAIN; next < NEXT_COUNT; next++) {
            kind = kinds[i];
            atomic_store(&refused, 0);
            run(2, 2, 20000, differ);
        }
    }
}

/* Neither awaits anything, so that each finds the other's bytes when it is past its own call. */
static void differ_in_root(struct solo_group *group, uint32_t rank, uint32_t size)
{
    float values[COUNT] = {0};
    struct solo_part part = {values, COUNT};
    struct solo_op op = {
        .kind = SOLO_OP_BROADCAST, .dtype = SOLO_F32, .root = rank, .out = &part, .out_count = 1};
    (void)size;
    int rc = solo_group_run(group, &op, 1, 0);
    if (rc == 0) {
        rc = call_allreduce(group, values);
    }
    CHECK_EQ(rc, SOLO_EMISMATCH);
    CHECK_HAS(solo_error_text(), "broadcast #1 of 10 float32, root 0");
    CHECK_HAS(solo_error_text(), "broadcast #1 of 10 float32, root 1");
}

TEST(two_that_both_only_sent_are_told_what_each_of_them_called)
{
    for (int i = 0; i < 20; i++) {
        run(2, 2, 20000, differ_in_root);
    }
}

/* Further ahead than this rank remembers what it called. */
static void run_ahead(struct solo_group *group, uint32_t rank, uint32_t size)
{
    float values[2 * COUNT] = {0};
    int rc = 0;
    (void)size;
    if (rank == 1) {
        wait_for_refusal();
        CHECK_EQ(call_allreduce(group, values), SOLO_EMISMATCH);
        return;
    }
    for (int i = 0; i < 300 && rc == 0; i++) {
        rc = call_rooted(group, values);
    }
    atomic_store(&refused, 1); /* rank 1 may come now */
    while (rc == 0) {
        clock_sleep_until(clock_us() + 1000);
        rc = solo_group_health(group);
    }
    CHECK_EQ(rc, SOLO_EMISMATCH);
    CHECK_HAS(solo_error_text(), "rank 1 calls all_reduce #1 of 10 float32");
}

TEST(who_sent_hundreds_of_times_before_it_was_refused_is_told_too)
{
    kind = SOLO_OP_BROADCAST;
    atomic_store(&refused, 0);
    run(2, 2, 20000, run_ahead);
}
