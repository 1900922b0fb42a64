#include <signal.h>

#include "check.h"
#include "os/crew.h"
#include "os/thread.h"

struct masks {
    bool interrupt, segv;
};

static void look(struct masks *masks)
{
    sigset_t set;
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
    masks->interrupt = sigismember(&set, SIGINT);
    masks->segv = sigismember(&set, SIGSEGV);
}

static void run(void *context)
{
    look(context);
}

static int work(void *context, uint32_t thread, size_t item)
{
    (void)thread;
    (void)item;
    look(context);
    return 0;
}

/* Ctrl-C is for the program's own threads, or its main thread sleeps on; a crash is reported by
 * the thread that crashes. */
TEST(threads_of_ours_take_no_signal_but_that_of_their_own_fault)
{
    struct masks masks = {.segv = true};
    struct thread thread = {0};
    CHECK_EQ(thread_start(&thread, "test", run, &masks), 0);
    thread_join(&thread);
    CHECK(masks.interrupt && !masks.segv);
    masks = (struct masks){.segv = true};
    struct crew *crew;
    CHECK_EQ(crew_start(1, 1, work, &masks, &crew), 0);
    CHECK_EQ(crew_wait(crew, 10000), 0);
    crew_free(crew);
    CHECK(masks.interrupt && !masks.segv);
    look(&masks);
    CHECK(!masks.interrupt);
}
