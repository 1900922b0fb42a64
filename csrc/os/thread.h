/* thread.h - threads, locks, and a latch: one thread waits for another's result.
 *
 * Any thread. Every wait has a deadline (clock_us). */
#ifndef SOLO_OS_THREAD_H
#define SOLO_OS_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "solo.h"

/* pthread_create with all signals blocked in the new thread: they belong to the program, not to
 * us. Only those that a fault of the thread itself raises get through, to whoever reports crashes.
 * Returns an errno. */
int thread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *),
                  void *context);

struct thread {
    pthread_t id;
    void (*run)(void *context);
    void *context;
    char name[16];
    bool started;
};

/* Starts `run(context)` as thread_create does. `thread` stays where it is until thread_join. */
int thread_start(struct thread *thread, const char *name, void (*run)(void *), void *context);
void thread_join(struct thread *thread); /* of a thread that was not started: nothing */

struct lock {
    pthread_mutex_t mutex;
};
void lock_init(struct lock *lock);
void lock_deinit(struct lock *lock);
void lock_take(struct lock *lock);
void lock_give(struct lock *lock);

/* A condition whose timed waits go by clock_us: the calendar's clock may be set at any moment. */
void condition_init(pthread_cond_t *condition);

/* Set once with a code and a text; until then waiters wait. */
struct latch {
    struct lock lock;
    pthread_cond_t changed;
    bool set;
    int rc;
    char text[SOLO_TEXT_MAX];
};

void latch_init(struct latch *latch);
void latch_deinit(struct latch *latch);
/* The first call counts, later ones change nothing. `text` (may be NULL) goes with rc < 0. */
void latch_set(struct latch *latch, int rc, const char *text);
/* true and *rc_out (with its text as this thread's error text): set; false: the deadline. */
bool latch_wait(struct latch *latch, uint64_t deadline_us, int *rc_out);

#endif
