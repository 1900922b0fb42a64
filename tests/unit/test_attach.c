/* A caller that waits no more: what it lent is not touched any more. */
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "node/engine.h"

static struct {
    struct call *call;
    atomic_bool gave_up, done;
    bool borrowed;
} late;

/* On the loop's thread, and busy until the caller has gone. */
static void on_late(void *context, void *argument)
{
    (void)context;
    struct call *call = argument;
    while (!atomic_load(&late.gave_up)) {
        clock_sleep_until(clock_us() + 1000);
    }
    late.borrowed = call_borrow(call);
    if (late.borrowed) {
        call_return(call);
    }
    call_finish(call, 0, NULL);
    atomic_store(&late.done, true);
}

TEST(a_caller_that_gave_up_lends_nothing_any_more)
{
    struct solo_config config = {.size = sizeof config, .master_url = "tcp://127.0.0.1:1"};
    struct solo *solo;
    CHECK_EQ(solo_open(&config, &solo), 0);
    struct call *call = call_new(solo);
    CHECK(call);
    struct solo_joined joined;
    CHECK_EQ(call_do(call, on_late, clock_us() + 20000, &joined), SOLO_ETIMEDOUT);
    CHECK_HAS(solo_error_text(), "did not answer in time");
    atomic_store(&late.gave_up, true);
    while (!atomic_load(&late.done)) {
        clock_sleep_until(clock_us() + 1000);
    }
    CHECK(!late.borrowed);
    solo_close(solo);
}

static void on_call(void *context, void *argument)
{
    (void)context;
    struct call *call = argument;
    CHECK(call_borrow(call));
    call->joined.version = 7;
    call_return(call);
    call_finish(call, 0, NULL);
}

TEST(a_caller_that_waits_is_given_the_answer)
{
    struct solo_config config = {.size = sizeof config, .master_url = "tcp://127.0.0.1:1"};
    struct solo *solo;
    CHECK_EQ(solo_open(&config, &solo), 0);
    struct solo_joined joined;
    CHECK_EQ(call_do(call_new(solo), on_call, clock_us() + 10000000, &joined), 0);
    CHECK_EQ(joined.version, 7);
    solo_close(solo);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* theirs ends the process */

static uint64_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* On the loop's thread: a queue that has to grow to more than there may be. */
static void overfill(void *context, void *argument)
{
    struct solo *solo = context;
    struct call *call = argument;
    struct rlimit before, low;
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    low = before;
    low.rlim_cur = address_space() + (64 << 20);
    CHECK_EQ(setrlimit(RLIMIT_AS, &low), 0);
    solo->works.count = solo->works.capacity = 1 << 24;
    work_add(solo, &(struct work){.kind = WORK_GIVE});
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
    solo->works.count = solo->works.capacity = 0;
    call_finish(call, 0, NULL);
}

TEST(a_work_queue_without_memory_ends_the_engine_with_words)
{
    struct solo_config config = {.size = sizeof config, .master_url = "tcp://127.0.0.1:1"};
    struct solo *solo;
    CHECK_EQ(solo_open(&config, &solo), 0);
    CHECK_EQ(call_do(call_new(solo), overfill, clock_us() + 10000000, NULL), 0);
    static const struct solo_tensor tensor = {"x", 4, SOLO_F32, SOLO_PARAM};
    float values[4] = {0};
    void *data[] = {values};
    CHECK_EQ(solo_attach(solo, &tensor, 1, data, NULL), SOLO_ENOMEM);
    CHECK_HAS(solo_error_text(), "no memory to remember");
    solo_close(solo);
}

#endif
