#include <stdlib.h>

#include "comm/group.h"
#include "group_kit.h"

enum { CALLS = 24, LONGEST = 300000 };

struct call {
    float *values;
    uint64_t count;
    _Atomic int ended;
    int rc;
    _Atomic int *awaits; /* told only when this is not 0, or after a while */
};

static _Atomic int lost_patience;

static void on_done(void *context, int rc, const char *text, uint32_t source)
{
    struct call *call = context;
    (void)text;
    (void)source;
    for (int i = 0; call->awaits && !atomic_load(call->awaits) && i < 10000; i++) {
        clock_sleep_until(clock_us() + 1000);
    }
    if (call->awaits && !atomic_load(call->awaits)) {
        atomic_store(&lost_patience, 1);
    }
    call->rc = rc;
    atomic_store(&call->ended, 1);
}

/* The outcome of a group that is broken already is the call's. */
static void post(struct solo_group *group, struct call *call)
{
    struct solo_part part = {call->values, call->count};
    struct solo_op op = allreduce(&part);
    atomic_store(&call->ended, 0);
    int rc = solo_group_post(group, &op, 1, 0, on_done, call);
    if (rc < 0) {
        call->rc = rc;
        atomic_store(&call->ended, 1);
    }
}

static void await(struct call *call)
{
    while (!atomic_load(&call->ended)) {
        clock_sleep_until(clock_us() + 200);
    }
}

/* ---- the next begin while the last one waits ------------------------------------------------- */

enum { AT_ONCE = 4 };

static _Atomic int all_ended;
static _Atomic(struct solo_group *) held_up;

static uint32_t begun_ahead(struct solo_group *group)
{
    pthread_mutex_lock(&group->mutex);
    uint32_t count = group->ahead_count;
    pthread_mutex_unlock(&group->mutex);
    return count;
}

/* Rank 1 is held up in telling of its first call: what rank 0 gets of the others was sent before. */
static void begin_ahead(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    float values[AT_ONCE][2];
    struct call calls[AT_ONCE] = {{.awaits = rank ? &all_ended : NULL}};
    for (int i = 0; rank == 0 && i < 10000; i++) { /* rank 1 waits for it with all of them */
        struct solo_group *other = atomic_load(&held_up);
        if (other && begun_ahead(other) == AT_ONCE - 1) {
            break;
        }
        clock_sleep_until(clock_us() + 1000);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        values[i][0] = values[i][1] = (float)(i + 1);
        calls[i].values = values[i];
        calls[i].count = 2;
        post(group, &calls[i]);
    }
    if (rank == 1) {
        atomic_store(&held_up, group);
    }
    for (int i = 0; i < AT_ONCE && rank == 0; i++) {
        await(&calls[i]);
    }
    if (rank == 0) {
        CHECK(!atomic_load(&lost_patience));
        atomic_store(&all_ended, 1);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        await(&calls[i]);
        CHECK_EQ(calls[i].rc, 0);
        CHECK_EQ(values[i][1], 2 * (i + 1));
    }
}

TEST(collectives_begin_while_the_last_one_waits_for_others)
{
    atomic_store(&all_ended, 0);
    atomic_store(&held_up, NULL);
    run(2, 2, 20000, begin_ahead);
}

/* ---- many at once ----------------------------------------------------------------------------- */

/* Every third call takes the result of the one before: it must not begin ahead of it. */
static void many(struct solo_group *group, uint32_t rank, uint32_t size)
{
    static const uint64_t counts[] = {1, 70, 9000, LONGEST, 200000, 3};
    struct call calls[CALLS] = {{0}};
    float *memory[CALLS];
    for (int i = 0; i < CALLS; i++) {
        bool again = i % 3 == 2;
        memory[i] = again ? NULL : malloc(LONGEST * sizeof(float));
        calls[i].values = again ? calls[i - 1].values : memory[i];
        calls[i].count = again ? calls[i - 1].count : counts[i % 6];
        for (uint64_t j = 0; !again && j < calls[i].count; j++) {
            calls[i].values[j] = (float)(rank + j % 5);
        }
    }
    for (int i = 0; i < CALLS; i++) {
        post(group, &calls[i]);
    }
    for (int i = 0; i < CALLS; i++) {
        await(&calls[i]);
        CHECK_EQ(calls[i].rc, 0);
    }
    for (int i = 0; i < CALLS; i++) {
        bool twice = i % 3 != 0;
        for (uint64_t j = 0; j < calls[i].count; j++) {
            uint64_t sum = size * (size - 1) / 2 + size * (j % 5);
            CHECK_EQ(calls[i].values[j], twice ? sum * size : sum);
        }
    }
    for (int i = 0; i < CALLS; i++) {
        free(memory[i]);
    }
}

TEST(sums_are_right_with_many_collectives_at_once)
{
    run(2, 2, 30000, many);
    run(3, 3, 30000, many);
    run(4, 2, 30000, many);
}

/* ---- what goes wrong -------------------------------------------------------------------------- */

/* Whatever was begun ahead fails too, and its memory is free then. */
static void broken(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct call calls[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        calls[i].count = i == 2 && rank == 1 ? LONGEST - 1 : LONGEST;
        calls[i].values = calloc(LONGEST, sizeof(float));
        post(group, &calls[i]);
    }
    for (int i = 0; i < 4; i++) {
        await(&calls[i]);
        CHECK(calls[i].rc == SOLO_EMISMATCH || (i < 2 && calls[i].rc == 0));
        free(calls[i].values);
    }
}

TEST(a_collective_that_differs_fails_with_all_behind_it)
{
    run(2, 2, 20000, broken);
}

static void aborted(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct call calls[4] = {{0}};
    for (int i = 0; i < 4 && (rank == 1 || i == 0); i++) {
        calls[i].count = LONGEST;
        calls[i].values = calloc(LONGEST, sizeof(float));
        post(group, &calls[i]);
    }
    await(&calls[0]);
    CHECK_EQ(calls[0].rc, 0);
    if (rank == 1) { /* which has begun what rank 0 never comes to */
        solo_group_abort(group, "enough");
    }
    for (int i = 0; i < 4 && calls[i].values; i++) {
        await(&calls[i]);
        CHECK_EQ(calls[i].rc, i == 0 ? 0 : SOLO_EABORTED);
        free(calls[i].values);
    }
}

TEST(what_was_begun_ahead_gives_back_its_memory_when_the_group_is_aborted)
{
    for (int i = 0; i < 10; i++) {
        run(2, 2, 20000, aborted);
    }
}
