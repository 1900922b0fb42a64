/* group_kit.h - groups whose ranks are threads of one process: on one host by shared memory, and as
 * if on several hosts by TCP. */
#ifndef SOLO_TESTS_GROUP_KIT_H
#define SOLO_TESTS_GROUP_KIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "os/clock.h"
#include "os/thread.h"
#include "solo_group.h"

enum { RANKS_MAX = 24 };

static struct world {
    uint32_t size, hosts, timeout_ms;
    char cards[RANKS_MAX][SOLO_CARD_MAX];
    pthread_barrier_t barrier;
    void (*body)(struct solo_group *group, uint32_t rank, uint32_t world);
} world;

static void *run_rank(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    char host[32];
    snprintf(host, sizeof host, "host-%u", rank % world.hosts);
    struct solo_group_config config = {.size = sizeof config,
                                       .rank = rank,
                                       .world = world.size,
                                       .timeout_ms = world.timeout_ms,
                                       .name = "test",
                                       .host_id = host};
    struct solo_group *group;
    CHECK_EQ(solo_group_prepare(&config, &group, world.cards[rank]), 0);
    pthread_barrier_wait(&world.barrier);
    const char *cards[RANKS_MAX];
    for (uint32_t i = 0; i < world.size; i++) {
        cards[i] = world.cards[i];
    }
    CHECK_EQ(solo_group_connect(group, cards, 0), 0);
    world.body(group, rank, world.size);
    pthread_barrier_wait(&world.barrier); /* a rank that leaves early is another test's matter */
    solo_group_close(group);
    return NULL;
}

static void run(uint32_t size, uint32_t hosts, uint32_t timeout_ms,
                void (*body)(struct solo_group *, uint32_t, uint32_t))
{
    pthread_t threads[RANKS_MAX];
    world = (struct world){.size = size, .hosts = hosts, .timeout_ms = timeout_ms, .body = body};
    pthread_barrier_init(&world.barrier, NULL, size);
    for (uint32_t i = 0; i < size; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, run_rank, (void *)(uintptr_t)i), 0);
    }
    for (uint32_t i = 0; i < size; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&world.barrier);
}

static inline struct solo_op allreduce(struct solo_part *part)
{
    return (struct solo_op){.kind = SOLO_OP_ALLREDUCE,
                            .dtype = SOLO_F32,
                            .in = part,
                            .out = part,
                            .in_count = 1,
                            .out_count = 1};
}

static inline void fill(float *values, uint64_t count, float value)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = value + (float)(i % 7);
    }
}

static inline void set_latch(void *context, int rc, const char *text, uint32_t source)
{
    (void)source;
    latch_set(context, rc, text);
}

#endif
