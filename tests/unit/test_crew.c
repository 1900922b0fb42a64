#include <stdatomic.h>
#include <unistd.h>

#include "base/err.h"
#include "check.h"
#include "os/crew.h"

struct work {
    atomic_int done[1000];
    atomic_int threads;
    int fails_at, slow;
};

static int step(void *context, uint32_t thread, size_t item)
{
    struct work *work = context;
    if (work->slow) {
        usleep(20000);
    }
    if ((int)item == work->fails_at) {
        return err_set(SOLO_ECORRUPT, "item %zu is bad", item);
    }
    atomic_fetch_or(&work->threads, 1 << thread);
    atomic_fetch_add(&work->done[item], 1);
    return 0;
}

TEST(every_item_is_done_once)
{
    struct work work = {.fails_at = -1};
    struct crew *crew;
    CHECK_EQ(crew_start(4, 1000, step, &work, &crew), 0);
    int rc;
    while ((rc = crew_wait(crew, 1000)) == SOLO_EAGAIN) {
    }
    CHECK_EQ(rc, 0);
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(work.done[i], 1);
    }
    crew_free(crew);
}

TEST(the_first_error_ends_the_work_and_keeps_its_text)
{
    struct work work = {.fails_at = 3};
    struct crew *crew;
    CHECK_EQ(crew_start(1, 1000, step, &work, &crew), 0);
    int rc;
    while ((rc = crew_wait(crew, 1000)) == SOLO_EAGAIN) {
    }
    CHECK_EQ(rc, SOLO_ECORRUPT);
    CHECK_STR(solo_error_text(), "item 3 is bad");
    CHECK_EQ(work.done[4], 0);
    crew_free(crew);
}

TEST(work_can_be_stopped)
{
    struct work work = {.fails_at = -1, .slow = 1};
    struct crew *crew;
    CHECK_EQ(crew_start(2, 1000, step, &work, &crew), 0);
    CHECK_EQ(crew_wait(crew, 1), SOLO_EAGAIN);
    crew_stop(crew);
    int rc;
    while ((rc = crew_wait(crew, 1000)) == SOLO_EAGAIN) {
    }
    CHECK_EQ(rc, SOLO_EABORTED);
    crew_free(crew);
}

TEST(no_items_are_done_at_once)
{
    struct work work = {.fails_at = -1};
    struct crew *crew;
    CHECK_EQ(crew_start(3, 0, step, &work, &crew), 0);
    CHECK_EQ(crew_wait(crew, 1000), 0);
    crew_free(crew);
}
