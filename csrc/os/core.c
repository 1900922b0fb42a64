#include "os/core.h"

#include <sched.h>

#include "base/err.h"

int32_t core_here(void)
{
    return sched_getcpu();
}

int core_leave(const int32_t *cores, uint32_t count)
{
    cpu_set_t may, other;
    if (sched_getaffinity(0, sizeof may, &may) < 0) { /* more cores than a set holds */
        return SOLO_ENOTSUP;
    }
    other = may;
    for (uint32_t i = 0; i < count; i++) {
        if (cores[i] >= 0 && cores[i] < CPU_SETSIZE) {
            CPU_CLR((size_t)cores[i], &other);
        }
    }
    if (CPU_COUNT(&other) == 0 || sched_setaffinity(0, sizeof other, &other) < 0) {
        return SOLO_ENOTSUP;
    }
    sched_setaffinity(0, sizeof may, &may);
    return 0;
}
