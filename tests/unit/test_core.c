#include <sched.h>

#include "check.h"
#include "os/core.h"

TEST(a_thread_leaves_its_core_and_may_then_run_wherever_it_might)
{
    cpu_set_t before, after;
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    int32_t here = core_here();
    CHECK_EQ(core_leave(&here, 1), CPU_COUNT(&before) > 1 ? 0 : SOLO_ENOTSUP);
    CHECK_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    CHECK(CPU_EQUAL(&before, &after));
}

TEST(a_thread_that_may_run_nowhere_else_stays)
{
    cpu_set_t before, after;
    int32_t cores[CPU_SETSIZE + 1] = {-1}; /* one that is not known */
    for (int32_t i = 0; i < CPU_SETSIZE; i++) {
        cores[i + 1] = i;
    }
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    CHECK_EQ(core_leave(cores, CPU_SETSIZE + 1), SOLO_ENOTSUP);
    CHECK_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    CHECK(CPU_EQUAL(&before, &after));
}
