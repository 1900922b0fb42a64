#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

/* One line at a time: the sink's own state needs no lock. A sink may be slow (a full pipe), so
 * whoever waits sleeps; and a child of fork must not wait for a thread that it does not have, so
 * fork itself waits until no line is under way. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static solo_log_fn sink;
static void *sink_context;
static enum solo_log_level sink_least;

static void lock(void)
{
    (void)pthread_mutex_lock(&mutex); /* of this kind it cannot fail */
}

static void unlock(void)
{
    (void)pthread_mutex_unlock(&mutex);
}

static void survive_fork(void)
{
    (void)pthread_atfork(lock, unlock, unlock); /* without memory for it: as if there was no fork */
}

void solo_log_set(solo_log_fn fn, void *context, enum solo_log_level least)
{
    pthread_once(&once, survive_fork);
    lock();
    sink = fn;
    sink_context = context;
    sink_least = least;
    unlock();
}

void log_line(enum solo_log_level level, const char *format, ...)
{
    char line[SOLO_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    lock();
    if (sink && level >= sink_least) {
        sink(sink_context, level, line);
    }
    unlock();
}
