#include "comm/line.h"

#include <limits.h>
#include <sched.h>

#include "os/clock.h"
#include "os/futex.h"

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void line_set(struct line *line, uint32_t value)
{
    /* Either we see the sleeper, or it sees the new value before it sleeps. */
    atomic_store_explicit(&line->value, value, memory_order_seq_cst);
    if (atomic_load_explicit(&line->sleepers, memory_order_seq_cst)) {
        futex_wake(&line->value, UINT32_MAX);
    }
}

/* Looks again and again; after spin_us lets others have the core between two looks, for whoever
 * is waited for may sit on it. Ends with the value, or after yield_us. */
static bool spin(const struct line *line, uint32_t value, const struct line_watch *watch)
{
    uint64_t begun_us = clock_us(), now_us = begun_us;
    do {
        for (int i = 0; i < 64 && (watch->spin_us || i == 0); i++) {
            if (line_reached(line, value)) {
                return true;
            }
            relax();
        }
        if (now_us - begun_us >= watch->spin_us) {
            sched_yield();
        }
        now_us = clock_us();
    } while (now_us - begun_us < watch->yield_us);
    return line_reached(line, value);
}

static int sleep_until(struct line *line, uint32_t value, const struct line_watch *watch)
{
    for (;;) {
        uint32_t seen = atomic_load_explicit(&line->value, memory_order_seq_cst);
        if ((int32_t)(seen - value) >= 0) {
            return 0;
        }
        uint64_t now_us = clock_us();
        int rc = watch->check(watch->context, now_us);
        if (rc < 0) { /* who published and then went has kept its word */
            return line_reached(line, value) ? 0 : rc;
        }
        futex_wait(&line->value, seen, now_us + LINE_CHECK_US);
    }
}

int line_wait(struct line *line, uint32_t value, const struct line_watch *watch)
{
    if (line_reached(line, value) || spin(line, value, watch)) {
        return 0;
    }
    atomic_fetch_add_explicit(&line->sleepers, 1, memory_order_seq_cst);
    int rc = sleep_until(line, value, watch);
    atomic_fetch_sub_explicit(&line->sleepers, 1, memory_order_relaxed);
    return rc;
}
