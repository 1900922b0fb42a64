/* line.h - one cache line that one rank writes and the others of its host wait for: a number
 * that only grows (modulo 2^32).
 *
 * Any thread of any process that maps it. */
#ifndef SOLO_COMM_LINE_H
#define SOLO_COMM_LINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct line {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers; /* who would have to be woken */
    uint32_t unused[14];
};

static inline bool line_reached(const struct line *line, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(&line->value, memory_order_acquire) - value) >= 0;
}

/* Publishes all that was written before. */
void line_set(struct line *line, uint32_t value);

/* How a wait ends early: `check` is asked every LINE_CHECK_US at the latest, and a negative
 * answer is what line_wait returns. */
struct line_watch {
    int (*check)(void *context, uint64_t now_us);
    void *context;
    uint32_t spin_us;  /* keeping the core; 0 where there are more ranks than cores */
    uint32_t yield_us; /* until it sleeps, giving the core away between two looks */
};
#define LINE_CHECK_US 10000u

int line_wait(struct line *line, uint32_t value, const struct line_watch *watch);

#endif
