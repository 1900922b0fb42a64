#include "os/crew.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "os/thread.h"

struct crew {
    crew_fn work;
    void *context;
    size_t items;
    atomic_size_t next;
    atomic_int stopped;
    atomic_uint joined; /* threads that have taken their number */
    pthread_mutex_t lock;
    pthread_cond_t left;
    uint32_t running; /* under lock */
    int rc;           /* under lock: of the first error */
    char text[SOLO_TEXT_MAX];
    uint32_t count;
    pthread_t threads[CREW_THREADS_MAX];
};

static void fail(struct crew *crew, int rc)
{
    pthread_mutex_lock(&crew->lock);
    if (!crew->rc) {
        crew->rc = rc;
        memcpy(crew->text, err_text(), sizeof crew->text);
    }
    pthread_mutex_unlock(&crew->lock);
    atomic_store(&crew->stopped, 1);
}

static void *run(void *argument)
{
    struct crew *crew = argument;
    uint32_t number = atomic_fetch_add(&crew->joined, 1);
    while (!atomic_load(&crew->stopped)) {
        size_t item = atomic_fetch_add(&crew->next, 1);
        if (item >= crew->items) {
            break;
        }
        int rc = crew->work(crew->context, number, item);
        if (rc < 0) {
            fail(crew, rc);
        }
    }
    pthread_mutex_lock(&crew->lock);
    crew->running--;
    pthread_cond_broadcast(&crew->left);
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

int crew_start(uint32_t threads, size_t items, crew_fn work, void *context, struct crew **out)
{
    struct crew *crew = calloc(1, sizeof *crew);
    if (!crew) {
        return err_set(SOLO_ENOMEM, "no memory for a crew of threads");
    }
    crew->work = work;
    crew->context = context;
    crew->items = items;
    pthread_mutex_init(&crew->lock, NULL);
    condition_init(&crew->left);
    threads = threads < CREW_THREADS_MAX ? threads : CREW_THREADS_MAX;
    threads = threads < items ? threads : (uint32_t)items;
    for (uint32_t i = 0; i < threads; i++) {
        pthread_mutex_lock(&crew->lock);
        crew->running++;
        pthread_mutex_unlock(&crew->lock);
        int failed = thread_create(&crew->threads[i], NULL, run, crew);
        if (failed) {
            pthread_mutex_lock(&crew->lock);
            crew->running--;
            pthread_mutex_unlock(&crew->lock);
            if (i == 0) { /* fewer threads are fine, none is not */
                errno = failed;
                int rc = err_errno("starting a thread");
                crew_free(crew);
                return rc;
            }
            break;
        }
        crew->count++;
    }
    *out = crew;
    return 0;
}

int crew_wait(struct crew *crew, uint32_t timeout_ms)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&crew->lock);
    int timed_out = 0;
    while (crew->running && !timed_out) {
        timed_out = pthread_cond_timedwait(&crew->left, &crew->lock, &deadline) == ETIMEDOUT;
    }
    int rc = crew->running ? SOLO_EAGAIN : crew->rc;
    pthread_mutex_unlock(&crew->lock);
    if (rc == 0 && atomic_load(&crew->stopped)) {
        return err_set(SOLO_EABORTED, "stopped by the caller");
    }
    return rc == 0 || rc == SOLO_EAGAIN ? rc : err_set(rc, "%s", crew->text);
}

void crew_stop(struct crew *crew)
{
    atomic_store(&crew->stopped, 1);
}

void crew_free(struct crew *crew)
{
    if (!crew) {
        return;
    }
    crew_stop(crew);
    for (uint32_t i = 0; i < crew->count; i++) {
        pthread_join(crew->threads[i], NULL);
    }
    pthread_cond_destroy(&crew->left);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
}

uint64_t crew_spent_us(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (uint64_t)spent.tv_sec * 1000000 + (uint64_t)spent.tv_nsec / 1000;
}
