#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

/* A spinning flag, not a mutex: base knows no threads; the sink is set once and lines are
 * rare. */
static atomic_flag busy = ATOMIC_FLAG_INIT;
static solo_log_fn sink;
static void *sink_context;
static enum solo_log_level sink_least;

static void lock(void)
{
    while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
    }
}

static void unlock(void)
{
    atomic_flag_clear_explicit(&busy, memory_order_release);
}

void solo_log_set(solo_log_fn fn, void *context, enum solo_log_level least)
{
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
