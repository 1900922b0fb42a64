/* The calendar's clock is set while somebody waits: no wait goes by it. */
#include <sys/syscall.h>

#include "group_kit.h"

/* In place of the system's. The calendar that is read is a day ahead of the kernel's: as if it was
 * set back right after it was read. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    out->tv_sec += clock == CLOCK_REALTIME ? 86400 : 0;
    return rc;
}

static void waits_for_its_work(struct solo_group *group, uint32_t rank, uint32_t size)
{
    (void)size;
    float value = 1;
    struct solo_part part = {&value, 1};
    struct solo_op op = allreduce(&part);
    struct latch latch;
    latch_init(&latch);
    if (rank == 0) { /* the other comes when this one has given up waiting */
        CHECK_EQ(solo_group_post(group, &op, 1, 0, set_latch, &latch), 0);
        CHECK_EQ(solo_group_shutdown(group, 20), SOLO_ETIMEDOUT);
    }
    pthread_barrier_wait(&world.barrier);
    if (rank == 1) {
        CHECK_EQ(solo_group_run(group, &op, 1, 0), 0);
    } else {
        int rc = SOLO_EAGAIN;
        CHECK(latch_wait(&latch, clock_us() + 60000000, &rc));
        CHECK_EQ(rc, 0);
    }
    CHECK(value == 2);
    latch_deinit(&latch);
}

TEST(who_waits_for_a_group_s_work_does_so_to_its_deadline)
{
    run(2, 1, 60000, waits_for_its_work);
}
