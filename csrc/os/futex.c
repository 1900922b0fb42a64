#include "os/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "os/clock.h"

/* FUTEX_WAIT_BITSET takes an absolute monotonic time, plain FUTEX_WAIT a relative one. */
int futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_us)
{
    struct timespec at = {.tv_sec = (time_t)(deadline_us / 1000000u),
                          .tv_nsec = (long)(deadline_us % 1000000u) * 1000};
    const struct timespec *until = deadline_us == CLOCK_NEVER ? NULL : &at;
    long rc = syscall(SYS_futex, (void *)word, FUTEX_WAIT_BITSET, expected, until, NULL,
                      FUTEX_BITSET_MATCH_ANY);
    return rc < 0 && errno == ETIMEDOUT ? SOLO_ETIMEDOUT : 0;
}

void futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE, count > INT_MAX ? INT_MAX : (int)count, NULL, NULL,
            0);
}
