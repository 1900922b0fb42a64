#include "os/host.h"

#include <errno.h>
#include <sched.h>
#include <stdint.h>

#include "check.h"

#define PROCESSORS 1500u

/* In place of the system's: a machine with more processors than a cpu_set_t has. */
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    (void)pid;
    if (size * 8 < PROCESSORS) {
        errno = EINVAL;
        return -1;
    }
    CPU_ZERO_S(size, set);
    for (size_t i = 0; i < PROCESSORS; i++) {
        CPU_SET_S(i, size, set);
    }
    return 0;
}

TEST(a_machine_with_more_processors_than_a_set_of_the_library_is_used_whole)
{
    CHECK_EQ(host_processors(), PROCESSORS);
    CHECK(host_cores() >= 1 && host_cores() <= PROCESSORS);
}
