#include "os/pulse.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/futex.h>

#include "base/err.h"
#include "os/thread.h"

#define STOPPED 0x3fffffffu /* no thread id: those are smaller */

/* The keeper's robust list. When the keeper ends, which it does only with its process, the
 * kernel walks the list and marks each word FUTEX_OWNER_DIED. The keeper changes the list
 * alone: the kernel may read it at any instant. */
static struct {
    struct robust_list_head head;
    pthread_mutex_t mutex;
    pthread_cond_t wanted, finished;
    struct pulse *add, *remove;
    uint32_t count;
    uint32_t tid;
    pid_t pid; /* of the process the keeper runs in: a forked child has none */
} keeper = {.mutex = PTHREAD_MUTEX_INITIALIZER,
            .wanted = PTHREAD_COND_INITIALIZER,
            .finished = PTHREAD_COND_INITIALIZER};

/* The list is one of struct robust_list, whose only field is `next`, as in struct pulse. */
static struct pulse *first(void)
{
    return (struct pulse *)(void *)keeper.head.list.next;
}

static struct pulse *end(void)
{
    return (struct pulse *)(void *)&keeper.head.list;
}

static void add(struct pulse *pulse)
{
    atomic_store(&pulse->word, keeper.tid);
    pulse->next = first();
    atomic_signal_fence(memory_order_seq_cst);
    keeper.head.list.next = (struct robust_list *)(void *)pulse;
    keeper.count++;
}

static void drop(struct pulse *pulse)
{
    if (first() == pulse) {
        keeper.head.list.next = (struct robust_list *)(void *)pulse->next;
    } else {
        struct pulse *at = first();
        while (at != end() && at->next != pulse) {
            at = at->next;
        }
        if (at == end()) {
            return;
        }
        at->next = pulse->next;
    }
    keeper.count--;
    atomic_store(&pulse->word, STOPPED);
}

static void *keep(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&keeper.mutex);
    keeper.tid = (uint32_t)syscall(SYS_gettid);
    keeper.head.list.next = &keeper.head.list;
    keeper.head.futex_offset = offsetof(struct pulse, word);
    syscall(SYS_set_robust_list, &keeper.head, sizeof keeper.head);
    for (;;) {
        if (keeper.add) {
            add(keeper.add);
            keeper.add = NULL;
        }
        if (keeper.remove) {
            drop(keeper.remove);
            keeper.remove = NULL;
        }
        pthread_cond_broadcast(&keeper.finished);
        pthread_cond_wait(&keeper.wanted, &keeper.mutex);
    }
    return NULL;
}

static int start_keeper(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t id;
    int failed = thread_create(&id, &attributes, keep, NULL);
    pthread_attr_destroy(&attributes);
    if (failed) {
        return err_set(SOLO_ESYS, "cannot start the thread that shows this process is alive");
    }
    keeper.count = 0;
    keeper.pid = getpid();
    return 0;
}

/* Waiting for the keeper has no deadline: it holds the mutex for a few instructions only. */
static void ask(struct pulse **field, struct pulse *pulse)
{
    while (*field) {
        pthread_cond_wait(&keeper.finished, &keeper.mutex);
    }
    *field = pulse;
    pthread_cond_signal(&keeper.wanted);
    while (*field == pulse) {
        pthread_cond_wait(&keeper.finished, &keeper.mutex);
    }
}

int pulse_start(struct pulse *pulse)
{
    pthread_mutex_lock(&keeper.mutex);
    int rc = 0;
    if (keeper.pid != getpid()) {
        rc = start_keeper();
    }
    if (rc == 0 && keeper.count >= PULSES_MAX) {
        rc = err_set(SOLO_ELIMIT, "this process is in %u groups already: destroy some of them",
                     PULSES_MAX);
    }
    if (rc == 0) {
        ask(&keeper.add, pulse);
    }
    pthread_mutex_unlock(&keeper.mutex);
    return rc;
}

void pulse_stop(struct pulse *pulse)
{
    pthread_mutex_lock(&keeper.mutex);
    if (keeper.pid == getpid()) {
        ask(&keeper.remove, pulse);
    }
    pthread_mutex_unlock(&keeper.mutex);
}

enum pulse_state pulse_look(const struct pulse *pulse)
{
    uint32_t word = atomic_load_explicit(&pulse->word, memory_order_acquire);
    if (word == 0) {
        return PULSE_NONE;
    }
    if (word & FUTEX_OWNER_DIED) {
        return PULSE_DEAD;
    }
    return word == STOPPED ? PULSE_STOPPED : PULSE_BEATING;
}
