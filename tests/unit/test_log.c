#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "check.h"

static atomic_int inside, most, lines;
static atomic_bool stop;

static void slow_sink(void *context, enum solo_log_level level, const char *text)
{
    (void)context;
    (void)level;
    int now = atomic_fetch_add(&inside, 1) + 1;
    if (now > atomic_load(&most)) {
        atomic_store(&most, now);
    }
    CHECK(text[0]);
    usleep(2000);
    atomic_fetch_add(&lines, 1);
    atomic_fetch_sub(&inside, 1);
}

static void *chatter(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        log_line(SOLO_LOG_WARN, "line");
    }
    return NULL;
}

static void with_two_threads(void (*then)(void))
{
    pthread_t threads[2];
    solo_log_set(slow_sink, NULL, SOLO_LOG_INFO);
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, chatter, NULL), 0);
    }
    then();
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    solo_log_set(NULL, NULL, SOLO_LOG_INFO);
}

static void wait_for_lines(void)
{
    int before = atomic_load(&lines);
    while (atomic_load(&lines) < before + 20) {
        usleep(1000);
    }
}

TEST(a_sink_is_called_by_one_thread_at_a_time)
{
    with_two_threads(wait_for_lines);
    CHECK_EQ(atomic_load(&most), 1);
}

static void fork_and_log(void)
{
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(5); /* instead of waiting for ever */
            log_line(SOLO_LOG_WARN, "from the child");
            _exit(0);
        }
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status));
    }
}

/* The lock was another thread's at that moment, which the child does not have. */
TEST(a_child_that_is_forked_while_others_log_can_log_too)
{
    with_two_threads(fork_and_log);
}

TEST(lines_below_the_least_level_and_without_a_sink_are_dropped)
{
    int before = atomic_load(&lines);
    log_line(SOLO_LOG_ERROR, "nobody hears it");
    solo_log_set(slow_sink, NULL, SOLO_LOG_WARN);
    log_line(SOLO_LOG_INFO, "too low");
    CHECK_EQ(atomic_load(&lines), before);
    log_line(SOLO_LOG_WARN, "heard");
    CHECK_EQ(atomic_load(&lines), before + 1);
    solo_log_set(NULL, NULL, SOLO_LOG_INFO);
}
