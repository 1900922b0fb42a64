#include "comm/group.h"
#include "group_kit.h"

/* One message on its way, as a caller sees it. */
struct letter {
    float value;
    pthread_t told_on;
    int rc;
    _Atomic int ended;
};

static void on_done(void *context, int rc, const char *text, uint32_t source)
{
    struct letter *letter = context;
    (void)text;
    (void)source;
    letter->told_on = pthread_self();
    letter->rc = rc;
    atomic_store(&letter->ended, 1);
}

static int is_ended(void *context)
{
    return atomic_load(&((struct letter *)context)->ended);
}

static void receive(struct solo_group *group, uint64_t tag, struct letter *letter)
{
    atomic_store(&letter->ended, 0);
    CHECK_EQ(solo_group_receive(group, 0, tag, &letter->value, 4, 0, on_done, letter), 0);
}

static void give(struct solo_group *group, uint64_t tag, struct letter *letter)
{
    letter->value = (float)tag;
    atomic_store(&letter->ended, 0);
    CHECK_EQ(solo_group_send(group, 1, tag, &letter->value, 4, 0, on_done, letter), 0);
}

static void await(const struct letter *letter)
{
    while (!atomic_load(&letter->ended)) {
        clock_sleep_until(clock_us() + 100);
    }
    CHECK_EQ(letter->rc, 0);
}

/* Rank 0 sends a while after rank 1 began to wait: nothing is there at once. */
static void moved_by_who_waits(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct letter letter;
    int own = 0;
    for (uint64_t tag = 0; tag < 50; tag++) {
        if (rank == 0) {
            clock_sleep_until(clock_us() + 2000);
            give(group, tag, &letter);
            await(&letter);
        } else {
            receive(group, tag, &letter);
            solo_group_help(group, is_ended, &letter);
            await(&letter);
            own += pthread_equal(letter.told_on, pthread_self()) != 0;
            CHECK_EQ(letter.value, tag);
        }
    }
    CHECK(rank == 0 || own > 0); /* all, unless the machine kept us away for long */
}

TEST(who_waits_for_a_message_moves_it_and_wakes_no_thread)
{
    run(2, 1, 20000, moved_by_who_waits);
    run(2, 2, 20000, moved_by_who_waits);
}

static void left_to_the_thread(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct letter first, second;
    if (rank == 0) {
        clock_sleep_until(clock_us() + 5000);
        give(group, 1, &first);
        await(&first);
        clock_sleep_until(clock_us() + 5000);
        give(group, 2, &second);
        await(&second);
    } else {
        receive(group, 1, &first);
        receive(group, 2, &second);
        solo_group_help(group, is_ended, &first);
        CHECK(atomic_load(&first.ended));
        await(&second);
    }
}

TEST(what_a_helper_leaves_behind_is_moved_by_the_groups_thread)
{
    run(2, 1, 20000, left_to_the_thread);
    run(2, 2, 20000, left_to_the_thread);
}

/* Others carried all there was for a while: the thread looks up rarely, and still does. */
static void left_after_many(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct letter letter;
    for (uint64_t tag = 0; tag < 500; tag++) {
        rank == 0 ? give(group, tag, &letter) : receive(group, tag, &letter);
        if (tag % 100 != 99) { /* each hundredth is left to the thread */
            solo_group_help(group, is_ended, &letter);
        }
        await(&letter);
    }
}

TEST(a_message_that_nobody_waits_for_comes_also_after_many_that_were_waited_for)
{
    run(2, 1, 20000, left_after_many);
    run(2, 2, 20000, left_after_many);
}

struct helper {
    struct solo_group *group;
    struct letter letter;
};

static void *help(void *argument)
{
    struct helper *helper = argument;
    while (!atomic_load(&helper->letter.ended)) {
        solo_group_help(helper->group, is_ended, &helper->letter);
    }
    return NULL;
}

/* Whoever helps moves the messages of all, and tells those who only wait. */
static void two_helpers(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct helper helpers[2] = {{.group = group}, {.group = group}};
    pthread_t threads[2];
    for (uint64_t round = 0; round < 50; round++) {
        for (uint64_t i = 0; i < 2; i++) {
            struct letter *letter = &helpers[i].letter;
            if (rank == 0) {
                give(group, 2 * round + i, letter);
                await(letter);
            } else {
                receive(group, 2 * round + i, letter);
                CHECK_EQ(pthread_create(&threads[i], NULL, help, &helpers[i]), 0);
            }
        }
        for (int i = 0; rank == 1 && i < 2; i++) {
            pthread_join(threads[i], NULL);
            CHECK_EQ(helpers[i].letter.rc, 0);
        }
    }
}

TEST(of_two_threads_that_wait_for_messages_one_moves_both)
{
    run(2, 1, 20000, two_helpers);
    run(2, 2, 20000, two_helpers);
}

/* A message that never comes ends at its deadline also for who moves it himself. */
static void never_sent(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct letter letter = {.ended = 0};
    if (rank == 1) {
        CHECK_EQ(solo_group_receive(group, 0, 1, &letter.value, 4, 50, on_done, &letter), 0);
        solo_group_help(group, is_ended, &letter);
        CHECK(atomic_load(&letter.ended));
        CHECK_EQ(letter.rc, SOLO_ETIMEDOUT);
        solo_group_help(group, is_ended, &(struct letter){.ended = 0}); /* nothing to move */
    }
}

TEST(who_moves_a_message_that_never_comes_is_released_at_its_deadline)
{
    run(2, 1, 20000, never_sent);
    run(2, 2, 20000, never_sent);
}

static void *pass_on(void *argument)
{
    struct helper *helper = argument;
    struct letter *letter = &helper->letter;
    for (uint64_t tag = 0; tag < 500; tag++) {
        receive(helper->group, tag, letter);
        solo_group_help(helper->group, is_ended, letter);
        await(letter);
    }
    return NULL;
}

/* Who moves messages has the net, and gets the first bytes of a collective that only begins here. */
static void both_at_once(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    struct helper helper = {.group = group};
    struct letter letter;
    pthread_t thread;
    if (rank == 1) {
        CHECK_EQ(pthread_create(&thread, NULL, pass_on, &helper), 0);
    }
    for (uint64_t i = 0; i < 500; i++) {
        float value = 1;
        struct solo_part part = {&value, 1};
        struct solo_op op = allreduce(&part);
        if (rank == 0) {
            give(group, i, &letter);
        }
        CHECK_EQ(solo_group_run(group, &op, 1, 0), 0);
        CHECK_EQ(value, 2);
        if (rank == 0) {
            await(&letter);
        }
    }
    if (rank == 1) {
        pthread_join(thread, NULL);
    }
}

TEST(a_collective_begins_while_another_thread_moves_messages)
{
    run(2, 1, 20000, both_at_once);
    run(2, 2, 20000, both_at_once);
}

/* The way to rank 0 is full, so that the long message cannot be asked for: the short one behind it
 * must not get its receive. */
enum { FILL_BYTES = 4064, FILL_FRAMES = 32, LONG_BYTES = 8192 }; /* 32 frames fill a tube */

static _Atomic uint32_t filled;

static void on_filled(void *context, int rc, const char *text, uint32_t source)
{
    (void)context, (void)text, (void)source;
    atomic_fetch_add(&filled, rc == 0);
}

static void fill_way(struct solo_group *group)
{
    static const uint8_t bytes[FILL_BYTES];
    const uint32_t fits = (64u << 20) / FILL_BYTES + FILL_FRAMES; /* kept early, and on the way */
    uint64_t deadline_us = clock_us() + 20000000;
    for (uint32_t i = 0; i <= fits; i++) {
        CHECK_EQ(solo_group_send(group, 0, 9, bytes, FILL_BYTES, 0, on_filled, NULL), 0);
    }
    while (atomic_load(&filled) < fits && clock_us() < deadline_us) {
        clock_sleep_until(clock_us() + 1000);
    }
    CHECK_EQ(atomic_load(&filled), fits);
}

static void empty_way(struct solo_group *group)
{
    static uint8_t rooms[2 * FILL_FRAMES][FILL_BYTES];
    for (int i = 0; i < 2 * FILL_FRAMES; i++) {
        CHECK_EQ(solo_group_receive(group, 1, 9, rooms[i], FILL_BYTES, 0, on_filled, NULL), 0);
    }
}

static void behind_an_offer(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    static uint8_t sent[LONG_BYTES] = {[LONG_BYTES - 1] = 7}, room[LONG_BYTES];
    static struct letter unasked, longer[2], shorter[2];
    struct letter *at_long = &longer[rank], *at_short = &shorter[rank];
    at_short->value = 5;
    if (rank == 1) {
        at_short->value = 0;
        CHECK_EQ(solo_group_receive(group, 0, 7, room, LONG_BYTES, 0, on_done, at_long), 0);
        CHECK_EQ(solo_group_receive(group, 0, 7, &at_short->value, 4, 0, on_done, at_short), 0);
        fill_way(group);
    } else { /* whoever waits for something takes in what comes early */
        CHECK_EQ(solo_group_receive(group, 1, 1, &unasked.value, 4, 0, on_done, &unasked), 0);
    }
    pthread_barrier_wait(&world.barrier);
    if (rank == 0) {
        CHECK_EQ(solo_group_send(group, 1, 7, sent, LONG_BYTES, 0, on_done, at_long), 0);
        CHECK_EQ(solo_group_send(group, 1, 7, &at_short->value, 4, 0, on_done, at_short), 0);
        clock_sleep_until(clock_us() + 50000); /* both are likely there while the way is full */
        empty_way(group);
    }
    await(at_long);
    await(at_short);
    CHECK(rank == 0 || (room[LONG_BYTES - 1] == 7 && at_short->value == 5));
}

TEST(a_message_behind_one_that_cannot_be_asked_for_yet_does_not_get_its_receive)
{
    run(2, 1, 60000, behind_an_offer);
}

/* ---- leaving -------------------------------------------------------------------------------- */

static struct solo_group *open_on_one_host(uint32_t rank)
{
    struct solo_group_config config = {.size = sizeof config,
                                       .rank = rank,
                                       .world = 2,
                                       .timeout_ms = 20000,
                                       .name = "leaving",
                                       .host_id = "host"};
    struct solo_group *group;
    CHECK_EQ(solo_group_prepare(&config, &group, world.cards[rank]), 0);
    pthread_barrier_wait(&world.barrier);
    const char *cards[2] = {world.cards[0], world.cards[1]};
    CHECK_EQ(solo_group_connect(group, cards, 0), 0);
    return group;
}

static void *send_and_leave(void *unused)
{
    struct solo_group *group = open_on_one_host(0);
    struct letter letter;
    for (uint64_t tag = 0; tag < 200; tag++) {
        give(group, tag, &letter);
        solo_group_help(group, is_ended, &letter);
        await(&letter);
    }
    group_hold(group); /* as its thread does while it dozes */
    solo_group_close(group);
    pthread_barrier_wait(&world.barrier); /* the other looks how this one has left */
    pthread_barrier_wait(&world.barrier);
    group_release(group);
    return unused;
}

TEST(who_has_closed_its_group_has_left_in_good_order)
{
    pthread_t sender;
    pthread_barrier_init(&world.barrier, NULL, 2);
    CHECK_EQ(pthread_create(&sender, NULL, send_and_leave, NULL), 0);
    struct solo_group *group = open_on_one_host(1);
    struct letter letter;
    for (uint64_t tag = 0; tag < 200; tag++) {
        receive(group, tag, &letter);
        solo_group_help(group, is_ended, &letter);
        await(&letter);
    }
    pthread_barrier_wait(&world.barrier);
    CHECK_EQ(pulse_look(&board_desk(&group->board, 0)->pulse), PULSE_STOPPED);
    pthread_barrier_wait(&world.barrier);
    pthread_join(sender, NULL);
    solo_group_close(group);
    pthread_barrier_destroy(&world.barrier);
}
