#include "os/clock.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

static uint64_t read_us(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t clock_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

uint64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

int clock_left_ms(uint64_t deadline_us, uint64_t now_us)
{
    if (deadline_us == CLOCK_NEVER) {
        return -1;
    }
    if (deadline_us <= now_us) {
        return 0;
    }
    uint64_t left_ms = (deadline_us - now_us + 999) / 1000;
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

void clock_sleep_until(uint64_t deadline_us)
{
    struct timespec at = {.tv_sec = (time_t)(deadline_us / 1000000u),
                          .tv_nsec = (long)(deadline_us % 1000000u) * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}
