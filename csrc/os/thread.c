#include "os/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "os/clock.h"

int thread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *),
                  void *context)
{
    static const int of_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof of_faults / sizeof *of_faults; i++) {
        sigdelset(&blocked, of_faults[i]);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &before); /* inherited by the new thread */
    int rc = pthread_create(id, attributes, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static void *entry(void *argument)
{
    struct thread *thread = argument;
    pthread_setname_np(pthread_self(), thread->name);
    thread->run(thread->context);
    return NULL;
}

int thread_start(struct thread *thread, const char *name, void (*run)(void *), void *context)
{
    thread->run = run;
    thread->context = context;
    snprintf(thread->name, sizeof thread->name, "%s", name);
    int rc = thread_create(&thread->id, NULL, entry, thread);
    thread->started = rc == 0;
    errno = rc;
    return rc == 0
               ? 0
               : err_errno("no thread for %s (limits: ulimit -u, the control group's pids)", name);
}

void thread_join(struct thread *thread)
{
    if (thread->started) {
        pthread_join(thread->id, NULL);
        thread->started = false;
    }
}

void lock_init(struct lock *lock)
{
    MUST(pthread_mutex_init(&lock->mutex, NULL) == 0);
}

void lock_deinit(struct lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

void lock_take(struct lock *lock)
{
    MUST(pthread_mutex_lock(&lock->mutex) == 0);
}

void lock_give(struct lock *lock)
{
    MUST(pthread_mutex_unlock(&lock->mutex) == 0);
}

void condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void latch_init(struct latch *latch)
{
    lock_init(&latch->lock);
    condition_init(&latch->changed);
    latch->set = false;
    latch->rc = 0;
    latch->text[0] = 0;
}

void latch_deinit(struct latch *latch)
{
    pthread_cond_destroy(&latch->changed);
    lock_deinit(&latch->lock);
}

void latch_set(struct latch *latch, int rc, const char *text)
{
    lock_take(&latch->lock);
    if (!latch->set) {
        latch->set = true;
        latch->rc = rc;
        snprintf(latch->text, sizeof latch->text, "%s", text ? text : "");
        pthread_cond_broadcast(&latch->changed);
    }
    lock_give(&latch->lock); /* last touch: a waiter may free the latch right after */
}

bool latch_wait(struct latch *latch, uint64_t deadline_us, int *rc_out)
{
    uint64_t far_us = clock_us() + 86400u * 1000000ull; /* CLOCK_NEVER overflows a time_t */
    uint64_t until_us = deadline_us < far_us ? deadline_us : far_us;
    struct timespec at = {.tv_sec = (time_t)(until_us / 1000000u),
                          .tv_nsec = (long)(until_us % 1000000u) * 1000};
    lock_take(&latch->lock);
    while (!latch->set && pthread_cond_timedwait(&latch->changed, &latch->lock.mutex, &at) == 0) {
    }
    bool set = latch->set;
    if (set) {
        *rc_out = latch->rc;
        if (latch->rc < 0) {
            err_set(latch->rc, "%s", latch->text);
        }
    }
    lock_give(&latch->lock);
    return set;
}
