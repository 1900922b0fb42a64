#include "comm/line.h"

#include <limits.h>

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

static bool spin(const struct line *line, uint32_t value, uint32_t spin_us)
{
    uint64_t end_us = clock_us() + spin_us;
    do {
        for (int i = 0; i < 64; i++) {
            if (line_reached(line, value)) {
                return true;
            }
            relax();
        }
    } while (clock_us() < end_us);
    return false;
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
    if (line_reached(line, value) || (watch->spin_us && spin(line, value, watch->spin_us))) {
        return 0;
    }
    atomic_fetch_add_explicit(&line->sleepers, 1, memory_order_seq_cst);
    int rc = sleep_until(line, value, watch);
    atomic_fetch_sub_explicit(&line->sleepers, 1, memory_order_relaxed);
    return rc;
}
