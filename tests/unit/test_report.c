/* An anchor that is read while others keep the loop's mailbox full. */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine_kit.h"

#define LARGE (1u << 20) /* elements: four pieces */

static struct {
    float *anchor; /* its second piece cannot be written until the mailbox is full */
    size_t bytes;
    struct mailbox *mailbox;
    volatile sig_atomic_t filled; /* letters that were posted */
    atomic_uint taken;            /* and have run */
} reading;

static void take(void *context, void *argument)
{
    (void)context;
    (void)argument;
    atomic_fetch_add(&reading.taken, 1);
}

/* On the loop's thread, in the middle of a piece: nobody holds the mailbox's lock there. */
static void fill_mailbox(int number)
{
    (void)number;
    int letters = 0;
    while (mailbox_post(reading.mailbox, take, NULL, NULL) == 0) {
        letters++;
    }
    reading.filled = letters;
    if (mprotect(reading.anchor, reading.bytes, PROT_READ | PROT_WRITE) < 0) {
        abort();
    }
}

TEST(an_anchor_is_read_to_its_end_though_the_mailbox_is_full)
{
    static const struct solo_tensor tensor = {"large", LARGE, SOLO_F32, SOLO_PARAM};
    static float value[LARGE];
    struct sigaction action = {.sa_handler = fill_mailbox}, before;
    void *data[] = {value};
    for (uint32_t i = 0; i < LARGE; i++) {
        value[i] = (float)(i + 1);
    }
    open_master(1);
    open_node(0, "avg");
    CHECK_EQ(solo_attach(nodes[0].solo, &tensor, 1, data, NULL), 0);
    reading.mailbox = nodes[0].solo->mailbox;
    reading.bytes = sizeof value;
    reading.anchor =
        mmap(NULL, reading.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(reading.anchor != MAP_FAILED);
    CHECK_EQ(mprotect(reading.anchor + LARGE / 4, reading.bytes / 4, PROT_NONE), 0);
    CHECK_EQ(sigaction(SIGSEGV, &action, &before), 0);
    CHECK_EQ(solo_read_anchor(nodes[0].solo, 0, reading.anchor, NULL), 0);
    CHECK_EQ(sigaction(SIGSEGV, &before, NULL), 0);
    CHECK_EQ(reading.filled, MAILBOX_MAX);
    CHECK(memcmp(reading.anchor, value, sizeof value) == 0);
    uint64_t deadline_us = clock_us() + 20000000;
    while (atomic_load(&reading.taken) < MAILBOX_MAX) { /* or there is no room for the goodbye */
        CHECK(clock_us() < deadline_us);
        clock_sleep_until(clock_us() + 1000);
    }
    munmap(reading.anchor, reading.bytes);
    close_all(1);
}
