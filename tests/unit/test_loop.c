#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "os/loop.h"

static struct loop *loop;

static void note(void *context)
{
    (*(int *)context)++;
}

static void turns(int count)
{
    for (int i = 0; i < count; i++) {
        CHECK_EQ(loop_turn(loop, 0), 0);
    }
}

struct order {
    int next;
    int at[64];
    uint64_t due_us[64];
};
struct ticker {
    struct loop_timer timer;
    struct order *order;
    int id;
};

static void tick(void *context)
{
    struct ticker *ticker = context;
    ticker->order->due_us[ticker->order->next] = ticker->timer.due_us;
    ticker->order->at[ticker->order->next++] = ticker->id;
}

TEST(timers_run_in_the_order_of_their_times_however_they_were_set)
{
    CHECK_EQ(loop_new(&loop), 0);
    struct order order = {0};
    struct ticker tickers[64];
    uint64_t start_us = clock_us();
    for (int i = 0; i < 64; i++) {
        tickers[i] = (struct ticker){
            .timer = {.fn = tick, .context = &tickers[i]}, .order = &order, .id = i};
        loop_timer_set(loop, &tickers[i].timer, start_us + (uint64_t)(i * 37 % 64) * 100);
    }
    for (int i = 0; i < 64; i += 4) {
        loop_timer_cancel(loop, &tickers[i].timer);
        loop_timer_cancel(loop, &tickers[i].timer);
    }
    while (order.next < 48) {
        CHECK_EQ(loop_turn(loop, CLOCK_NEVER), 0);
    }
    for (int i = 0; i < 48; i++) {
        CHECK(order.at[i] % 4 != 0);
        CHECK(i == 0 || order.due_us[i] >= order.due_us[i - 1]);
    }
    loop_free(loop);
}

static struct loop_timer again;

static void set_again(void *context)
{
    (*(int *)context)++;
    loop_timer_set(loop, &again, 0);
}

TEST(a_timer_that_sets_itself_anew_waits_for_the_next_turn)
{
    int runs = 0;
    CHECK_EQ(loop_new(&loop), 0);
    again = (struct loop_timer){.fn = set_again, .context = &runs};
    loop_timer_set(loop, &again, 0);
    CHECK_EQ(loop_turn(loop, CLOCK_NEVER), 0);
    CHECK(runs <= 1);
    while (runs < 3) {
        CHECK_EQ(loop_turn(loop, CLOCK_NEVER), 0);
    }
    loop_timer_cancel(loop, &again);
    loop_free(loop);
}

TEST(a_task_runs_once_however_often_it_was_asked_for)
{
    int runs = 0;
    CHECK_EQ(loop_new(&loop), 0);
    struct loop_task task = {.fn = note, .context = &runs};
    struct loop_task other = {.fn = note, .context = &runs};
    loop_later(loop, &task);
    loop_later(loop, &task);
    loop_later(loop, &other);
    loop_later_cancel(loop, &other);
    CHECK_EQ(loop_turn(loop, CLOCK_NEVER), 0); /* does not sleep: a task waits */
    turns(2);
    CHECK_EQ(runs, 1);
    loop_free(loop);
}

struct pair {
    struct loop_io io;
    struct pair *other;
    int events;
};

static void unwatch_both(void *context, uint32_t events)
{
    struct pair *pair = context;
    (void)events;
    pair->events++;
    loop_unwatch(loop, &pair->io);
    loop_unwatch(loop, &pair->other->io);
}

TEST(a_descriptor_that_was_unwatched_in_this_turn_gets_no_event_of_it)
{
    int a[2], b[2];
    CHECK_EQ(loop_new(&loop), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
    struct pair one = {0}, two = {0};
    one = (struct pair){.io = {.fn = unwatch_both, .context = &one, .fd = a[0]}, .other = &two};
    two = (struct pair){.io = {.fn = unwatch_both, .context = &two, .fd = b[0]}, .other = &one};
    CHECK_EQ(loop_watch(loop, &one.io, EPOLLIN), 0);
    CHECK_EQ(loop_watch(loop, &two.io, EPOLLIN), 0);
    CHECK_EQ(write(a[1], "x", 1), 1);
    CHECK_EQ(write(b[1], "x", 1), 1);
    turns(3);
    CHECK_EQ(one.events + two.events, 1);
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
    loop_free(loop);
}

static void stop(void *context)
{
    loop_stop(context);
}

struct reader {
    struct loop_io io;
    int far, calls, guesses;
};

static void read_some(void *context, uint32_t events)
{
    struct reader *reader = context;
    char bytes[8];
    reader->calls++;
    reader->guesses += events == 0;
    ssize_t got = recv(reader->io.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    CHECK(got > 0 || events == 0);
}

static void open_reader(struct reader *reader, bool guessed)
{
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    *reader = (struct reader){.far = fds[1]};
    reader->io =
        (struct loop_io){.fn = read_some, .context = reader, .fd = fds[0], .guessed = guessed};
    CHECK_EQ(loop_watch(loop, &reader->io, EPOLLIN), 0);
}

static void wake(struct reader *reader, int times)
{
    for (int i = 0; i < times; i++) {
        int before = reader->calls;
        CHECK_EQ(write(reader->far, "x", 1), 1);
        CHECK_EQ(loop_turn(loop, CLOCK_NEVER), 0);
        CHECK_EQ(reader->calls, before + 1);
    }
}

static void close_reader(struct reader *reader)
{
    loop_unwatch(loop, &reader->io);
    close(reader->io.fd);
    close(reader->far);
}

TEST(who_alone_had_something_twice_is_asked_by_a_guess)
{
    struct reader often, other, shy;
    int runs = 0;
    CHECK_EQ(loop_new(&loop), 0);
    open_reader(&often, true);
    open_reader(&other, true);
    open_reader(&shy, false);
    struct loop_task task = {.fn = note, .context = &runs};
    loop_later(loop, &task);
    wake(&often, 1);
    CHECK(!loop_guess(loop));
    wake(&often, 1);
    loop_later(loop, &task);
    CHECK(loop_guess(loop));
    CHECK(loop_guess(loop));
    CHECK_EQ(often.guesses, 2);
    CHECK_EQ(runs, 2);
    wake(&other, 1); /* now two have something */
    CHECK(!loop_guess(loop));
    wake(&shy, 3); /* does not want it */
    CHECK(!loop_guess(loop));
    wake(&often, 2);
    close_reader(&often);
    CHECK(!loop_guess(loop));
    CHECK_EQ(other.guesses + shy.guesses, 0);
    close_reader(&other);
    close_reader(&shy);
    loop_free(loop);
}

TEST(a_stop_ends_the_run_also_when_it_came_before)
{
    CHECK_EQ(loop_new(&loop), 0);
    struct loop_timer timer = {.fn = stop, .context = loop};
    loop_timer_set(loop, &timer, clock_us() + 1000);
    CHECK_EQ(loop_run(loop), 0);
    CHECK_EQ(loop_run(loop), 0);
    loop_free(loop);
}

TEST(the_time_left_is_rounded_up_and_never_negative)
{
    CHECK_EQ(clock_left_ms(CLOCK_NEVER, 5), -1);
    CHECK_EQ(clock_left_ms(5, 5), 0);
    CHECK_EQ(clock_left_ms(5, 6), 0);
    CHECK_EQ(clock_left_ms(6, 5), 1);
    CHECK_EQ(clock_left_ms(5 + 1001, 5), 2);
}
