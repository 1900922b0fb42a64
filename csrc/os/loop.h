/* loop.h - one thread's turn: descriptors that are ready, timers that are due, tasks put off
 * to the end of the turn.
 *
 * Threads: loop thread only, but loop_wake and loop_stop. Handlers may add, change and remove
 * anything, themselves too. The structs are the caller's, in place until removed. */
#ifndef SOLO_OS_LOOP_H
#define SOLO_OS_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "os/clock.h"

struct loop;

/* Zero is a valid initial value of the three: not in the loop. */
struct loop_io {
    void (*fn)(void *context, uint32_t events); /* EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR */
    void *context;
    int fd;
    uint32_t events;
    bool added;
    bool guessed; /* fn may be called with no events, to see what it finds: loop_guess */
};

struct loop_timer {
    void (*fn)(void *context);
    void *context;
    uint64_t due_us;
    struct loop_timer *child, *next, *previous; /* a pairing heap: no limit, no allocation */
    bool set;
};

struct loop_task {
    void (*fn)(void *context);
    void *context;
    struct loop_task *next, *previous;
};

/* Gives *out: loop_free. */
int loop_new(struct loop **out);
void loop_free(struct loop *loop); /* NULL is allowed */

/* Runs turns until loop_stop: 0, or an error of epoll. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop); /* any thread, or a signal handler */
void loop_wake(struct loop *loop); /* the same: ends the sleep of this turn */

/* One turn; sleeps at most until the deadline. For tests and for callers with a loop of theirs. */
int loop_turn(struct loop *loop, uint64_t deadline_us);

/* Instead of a turn: asks the descriptor that alone had something to read the last two times, as if
 * it had again, and runs tasks; saves a call of the kernel where the answer is known. No timers, no
 * other descriptors: a turn now and then is still needed. False: nothing to guess, nothing done. */
bool loop_guess(struct loop *loop);

uint64_t loop_now(const struct loop *loop); /* the same all through a turn */

/* Watches io->fd for io->events (level-triggered), or changes what is watched for. */
int loop_watch(struct loop *loop, struct loop_io *io, uint32_t events);
void loop_unwatch(struct loop *loop, struct loop_io *io); /* before the fd is closed */

void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t due_us); /* or moves it */
void loop_timer_cancel(struct loop *loop, struct loop_timer *timer);

/* Has task->fn run once at the end of this turn (of the next, when called from a task). */
void loop_later(struct loop *loop, struct loop_task *task);
void loop_later_cancel(struct loop *loop, struct loop_task *task);

/* Runs what was put off outside of a turn, before the next one looks at anything: whether there was
 * anything. */
bool loop_run_tasks(struct loop *loop);

#endif
