#include "os/loop.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"

enum { EVENTS_PER_TURN = 64 };

struct loop {
    int epoll_fd, wake_fd;
    uint64_t now_us;
    struct loop_timer *timers;                 /* root of the heap: the earliest */
    struct loop_task *tasks;                   /* circular list; `tasks` is the first */
    struct loop_task end;                      /* behind the last that runs in this turn */
    struct epoll_event ready[EVENTS_PER_TURN]; /* of this turn; data.ptr NULL: was removed */
    int ready_count, ready_at;
    struct loop_io *last, *guess; /* who had something to read last; the same, if twice */
    atomic_bool stopping;
};

int loop_new(struct loop **out)
{
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop) {
        return err_set(SOLO_ENOMEM, "no memory for an event loop");
    }
    int rc = 0;
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = loop};
    if (loop->epoll_fd < 0 || loop->wake_fd < 0 ||
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &wake) < 0) {
        rc = err_errno("no descriptors for an event loop (limit: ulimit -n)");
        goto free_loop;
    }
    loop->now_us = clock_us();
    *out = loop;
    return 0;
free_loop:
    loop_free(loop);
    return rc;
}

void loop_free(struct loop *loop)
{
    if (!loop) {
        return;
    }
    if (loop->wake_fd >= 0) {
        close(loop->wake_fd);
    }
    if (loop->epoll_fd >= 0) {
        close(loop->epoll_fd);
    }
    free(loop);
}

uint64_t loop_now(const struct loop *loop)
{
    return loop->now_us;
}

void loop_wake(struct loop *loop)
{
    uint64_t one = 1;
    int kept = errno; /* may run in a signal handler */
    ssize_t written = write(loop->wake_fd, &one, sizeof one);
    (void)written; /* a full counter wakes as well */
    errno = kept;
}

void loop_stop(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    loop_wake(loop);
}

/* ---- descriptors ------------------------------------------------------------------------ */

int loop_watch(struct loop *loop, struct loop_io *io, uint32_t events)
{
    if (io->added && io->events == events) {
        return 0;
    }
    struct epoll_event event = {.events = events, .data.ptr = io};
    int operation = io->added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(loop->epoll_fd, operation, io->fd, &event) < 0) {
        return err_errno("cannot watch descriptor %d", io->fd);
    }
    io->added = true;
    io->events = events;
    return 0;
}

void loop_unwatch(struct loop *loop, struct loop_io *io)
{
    if (!io->added) {
        return;
    }
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, io->fd, NULL);
    io->added = false;
    loop->last = loop->last == io ? NULL : loop->last;
    loop->guess = loop->guess == io ? NULL : loop->guess;
    for (int i = loop->ready_at; i < loop->ready_count; i++) {
        if (loop->ready[i].data.ptr == io) { /* an event of this turn for a dead owner */
            loop->ready[i].data.ptr = NULL;
        }
    }
}

static void run_ready(struct loop *loop)
{
    for (loop->ready_at = 0; loop->ready_at < loop->ready_count;) {
        struct epoll_event event = loop->ready[loop->ready_at++];
        struct loop_io *io = event.data.ptr;
        if (event.data.ptr == loop) {
            uint64_t count;
            ssize_t got = read(loop->wake_fd, &count, sizeof count);
            (void)got; /* only its readiness mattered */
        } else if (io) {
            if (event.events & EPOLLIN) {
                loop->guess = io->guessed && loop->last == io ? io : NULL;
                loop->last = io;
            }
            io->fn(io->context, event.events);
        }
    }
    loop->ready_count = loop->ready_at = 0;
}

/* ---- timers: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986) --------------------
 * `child` is a node's first child, `next` its sibling, `previous` its elder sibling or, of a
 * first child, its parent. */

static struct loop_timer *meld(struct loop_timer *a, struct loop_timer *b)
{
    if (!a || !b) {
        return a ? a : b;
    }
    if (b->due_us < a->due_us) {
        struct loop_timer *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->child;
    if (b->next) {
        b->next->previous = b;
    }
    b->previous = a;
    a->child = b;
    a->next = a->previous = NULL;
    return a;
}

static struct loop_timer *meld_siblings(struct loop_timer *first)
{
    struct loop_timer *pairs = NULL; /* melded pairs, last first, linked by next */
    while (first) {
        struct loop_timer *second = first->next;
        struct loop_timer *rest = second ? second->next : NULL;
        first->next = first->previous = NULL;
        if (second) {
            second->next = second->previous = NULL;
        }
        struct loop_timer *pair = meld(first, second);
        pair->next = pairs;
        pairs = pair;
        first = rest;
    }
    struct loop_timer *root = NULL;
    while (pairs) {
        struct loop_timer *next = pairs->next;
        pairs->next = NULL;
        root = meld(root, pairs);
        pairs = next;
    }
    return root;
}

void loop_timer_cancel(struct loop *loop, struct loop_timer *timer)
{
    if (!timer->set) {
        return;
    }
    struct loop_timer *children = meld_siblings(timer->child);
    if (timer == loop->timers) {
        loop->timers = children;
    } else {
        if (timer->previous->child == timer) {
            timer->previous->child = timer->next;
        } else {
            timer->previous->next = timer->next;
        }
        if (timer->next) {
            timer->next->previous = timer->previous;
        }
        loop->timers = meld(loop->timers, children);
    }
    timer->child = timer->next = timer->previous = NULL;
    timer->set = false;
}

void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t due_us)
{
    loop_timer_cancel(loop, timer);
    /* Never due in this turn: a timer that sets itself anew waits for the next. */
    timer->due_us = due_us > loop->now_us ? due_us : loop->now_us + 1;
    timer->set = true;
    loop->timers = meld(loop->timers, timer);
}

static void run_timers(struct loop *loop)
{
    while (loop->timers && loop->timers->due_us <= loop->now_us) {
        struct loop_timer *timer = loop->timers;
        loop_timer_cancel(loop, timer);
        timer->fn(timer->context);
    }
}

/* ---- tasks ------------------------------------------------------------------------------ */

void loop_later(struct loop *loop, struct loop_task *task)
{
    if (task->next) {
        return; /* is waiting already */
    }
    if (!loop->tasks) {
        loop->tasks = task->next = task->previous = task;
        return;
    }
    struct loop_task *last = loop->tasks->previous;
    last->next = task;
    task->previous = last;
    task->next = loop->tasks;
    loop->tasks->previous = task;
}

void loop_later_cancel(struct loop *loop, struct loop_task *task)
{
    if (!task->next) {
        return;
    }
    if (task->next == task) {
        loop->tasks = NULL;
    } else {
        task->previous->next = task->next;
        task->next->previous = task->previous;
        if (loop->tasks == task) {
            loop->tasks = task->next;
        }
    }
    task->next = task->previous = NULL;
}

/* Those that wait now; what they put off themselves waits for the next turn, so that a task
 * that always comes back cannot keep descriptors waiting. */
static void run_tasks(struct loop *loop)
{
    struct loop_task *end = &loop->end;
    if (!loop->tasks) {
        return;
    }
    loop_later(loop, end);
    while (loop->tasks && loop->tasks != end) {
        struct loop_task *task = loop->tasks;
        loop_later_cancel(loop, task);
        task->fn(task->context);
    }
    loop_later_cancel(loop, end);
}

bool loop_run_tasks(struct loop *loop)
{
    bool any = loop->tasks;
    loop->now_us = clock_us();
    run_tasks(loop);
    return any;
}

bool loop_guess(struct loop *loop)
{
    if (!loop->guess) {
        return false;
    }
    loop_run_tasks(loop);
    struct loop_io *io = loop->guess;
    if (io) { /* no task took it away */
        io->fn(io->context, 0);
        run_tasks(loop);
    }
    return true;
}

/* ---- turns ------------------------------------------------------------------------------ */

int loop_turn(struct loop *loop, uint64_t deadline_us)
{
    uint64_t until_us = deadline_us;
    if (loop->tasks) {
        until_us = 0;
    } else if (loop->timers && loop->timers->due_us < until_us) {
        until_us = loop->timers->due_us;
    }
    int wait_ms = until_us == 0 ? 0 : clock_left_ms(until_us, clock_us());
    int count = epoll_wait(loop->epoll_fd, loop->ready, EVENTS_PER_TURN, wait_ms);
    if (count < 0 && errno != EINTR) {
        return err_errno("epoll_wait");
    }
    loop->now_us = clock_us();
    loop->ready_count = count > 0 ? count : 0;
    run_ready(loop);
    run_timers(loop);
    run_tasks(loop);
    return 0;
}

int loop_run(struct loop *loop)
{
    while (!atomic_load(&loop->stopping)) {
        TRY(loop_turn(loop, CLOCK_NEVER));
    }
    return 0;
}
