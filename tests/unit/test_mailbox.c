#include "check.h"
#include "os/futex.h"
#include "os/mailbox.h"
#include "os/thread.h"

enum { POSTERS = 4, LETTERS = 20000 };

struct poster {
    struct thread thread;
    struct mailbox *mailbox;
    uint64_t received; /* by the loop thread, in order */
    int out_of_order;
};

static void receive(void *context, void *argument)
{
    struct poster *poster = context;
    poster->out_of_order += (uint64_t)(uintptr_t)argument != poster->received;
    poster->received++;
}

static void post_all(void *context)
{
    struct poster *poster = context;
    for (uint64_t i = 0; i < LETTERS; i++) {
        int rc;
        while ((rc = mailbox_post(poster->mailbox, receive, poster, (void *)(uintptr_t)i)) ==
               SOLO_EAGAIN) {
            clock_sleep_until(clock_us() + 50);
        }
        CHECK_EQ(rc, 0);
    }
}

TEST(letters_of_many_threads_each_arrive_once_and_in_their_order)
{
    struct loop *loop;
    struct mailbox *mailbox;
    static struct poster posters[POSTERS];
    CHECK_EQ(loop_new(&loop), 0);
    CHECK_EQ(mailbox_new(loop, &mailbox), 0);
    for (int i = 0; i < POSTERS; i++) {
        posters[i].mailbox = mailbox;
        CHECK_EQ(thread_start(&posters[i].thread, "poster", post_all, &posters[i]), 0);
    }
    uint64_t total = 0;
    while (total < POSTERS * LETTERS) {
        CHECK_EQ(loop_turn(loop, clock_us() + 5000000), 0);
        total = 0;
        for (int i = 0; i < POSTERS; i++) {
            total += posters[i].received;
        }
    }
    for (int i = 0; i < POSTERS; i++) {
        thread_join(&posters[i].thread);
        CHECK_EQ(posters[i].received, LETTERS);
        CHECK_EQ(posters[i].out_of_order, 0);
    }
    mailbox_free(mailbox);
    loop_free(loop);
}

static void count(void *context, void *argument)
{
    (void)argument;
    (*(uint32_t *)context)++;
}

TEST(a_full_mailbox_refuses_and_a_closed_one_runs_what_waits)
{
    struct loop *loop;
    struct mailbox *mailbox;
    uint32_t runs = 0;
    CHECK_EQ(loop_new(&loop), 0);
    CHECK_EQ(mailbox_new(loop, &mailbox), 0);
    for (uint32_t i = 0; i < MAILBOX_MAX; i++) {
        CHECK_EQ(mailbox_post(mailbox, count, &runs, NULL), 0);
    }
    CHECK_EQ(mailbox_post(mailbox, count, &runs, NULL), SOLO_EAGAIN);
    CHECK_EQ(runs, 0);
    mailbox_close(mailbox);
    CHECK_EQ(runs, MAILBOX_MAX);
    CHECK_EQ(mailbox_post(mailbox, count, &runs, NULL), SOLO_ECLOSED);
    mailbox_free(mailbox);
    loop_free(loop);
}

static void set_latch(void *context)
{
    latch_set(context, SOLO_EPEER, "node 3 spoke nonsense");
    latch_set(context, 0, NULL);
}

TEST(a_latch_hands_the_first_result_and_its_text_to_another_thread)
{
    struct latch latch;
    struct thread thread = {0};
    int rc = 0;
    latch_init(&latch);
    CHECK(!latch_wait(&latch, clock_us() + 1000, &rc));
    CHECK_EQ(thread_start(&thread, "setter", set_latch, &latch), 0);
    CHECK(latch_wait(&latch, CLOCK_NEVER, &rc));
    CHECK_EQ(rc, SOLO_EPEER);
    CHECK_STR(solo_error_text(), "node 3 spoke nonsense");
    thread_join(&thread);
    latch_deinit(&latch);
}

static _Atomic uint32_t word;

static void change_word(void *context)
{
    (void)context;
    atomic_store(&word, 7);
    futex_wake(&word, UINT32_MAX);
}

TEST(a_futex_wait_ends_with_the_change_or_with_the_deadline)
{
    struct thread thread = {0};
    atomic_store(&word, 1);
    uint64_t deadline_us = clock_us() + 2000;
    int rc;
    while ((rc = futex_wait(&word, 1, deadline_us)) == 0) { /* it may end early */
    }
    CHECK_EQ(rc, SOLO_ETIMEDOUT);
    CHECK_EQ(thread_start(&thread, "waker", change_word, NULL), 0);
    while (atomic_load(&word) == 1) {
        CHECK_EQ(futex_wait(&word, 1, clock_us() + 20000000), 0);
    }
    CHECK_EQ(atomic_load(&word), 7);
    thread_join(&thread);
}
