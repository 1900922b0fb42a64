/* engine_kit.h - a master and nodes as threads of the test's process, used through solo.h. */
#ifndef TESTS_ENGINE_KIT_H
#define TESTS_ENGINE_KIT_H

#include <pthread.h>

#include "check.h"
#include "node/engine.h"
#include "os/sock.h"

#define ELEMENTS 3000u

struct trainer {
    struct solo *solo;
    float weight[ELEMENTS];
    int64_t steps;
    void *data[2];
    struct solo_joined joined;
    struct solo_result result;
    int rc;
    pthread_t thread;
};

static const struct solo_tensor tensors[] = {{"weight", ELEMENTS, SOLO_F32, SOLO_PARAM},
                                             {"steps", 1, SOLO_I64, SOLO_MAX}};
static struct trainer nodes[3];
static struct solo_master *master;
static pthread_t master_thread;
static char url[64];
static const char *state_dir; /* NULL: none */

static inline void *run_master(void *unused)
{
    (void)unused;
    CHECK_EQ(solo_master_run(master), 0);
    return NULL;
}

static struct solo_master_config master_config;

static inline void open_master(uint32_t min_nodes)
{
    struct solo_url any = {"127.0.0.1", 0};
    int fd;
    uint16_t port;
    CHECK_EQ(sock_listen(&any, &fd, &port), 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", port);
    master_config.size = sizeof master_config;
    master_config.listen_fd = fd;
    master_config.min_nodes = min_nodes;
    master_config.job_id = "unit";
    CHECK_EQ(solo_master_open(&master_config, &master), 0);
    CHECK_EQ(pthread_create(&master_thread, NULL, run_master, NULL), 0);
}

static inline void close_master(void)
{
    solo_master_stop(master);
    pthread_join(master_thread, NULL);
    solo_master_close(master);
}

static inline void open_node(uint32_t rank, const char *outer)
{
    struct trainer *node = &nodes[rank];
    struct solo_config config = {.size = sizeof config,
                                 .master_url = url,
                                 .job_id = "unit",
                                 .node_rank = rank,
                                 .device_count = 2,
                                 .outer = outer,
                                 .state_dir = state_dir,
                                 .timeout_ms = 10000};
    CHECK_EQ(solo_open(&config, &node->solo), 0);
    node->data[0] = node->weight;
    node->data[1] = &node->steps;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        node->weight[i] = (float)(rank + 1);
    }
}

static inline void *attach(void *context)
{
    struct trainer *node = context;
    node->joined.size = sizeof node->joined;
    node->rc = solo_attach(node->solo, tensors, 2, node->data, &node->joined);
    return NULL;
}

static inline void attach_all(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(pthread_create(&nodes[i].thread, NULL, attach, &nodes[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(nodes[i].thread, NULL);
        CHECK_EQ(nodes[i].rc, 0);
    }
}

static inline int submit(struct trainer *node, uint64_t samples, struct solo_handle **out)
{
    struct solo_contribution contribution = {
        .size = sizeof contribution, .samples = samples, .steps = 10, .lr_sum = 1};
    return solo_submit(node->solo, node->data, &contribution, out);
}

static inline void merge_all(uint32_t count, const uint64_t *samples)
{
    struct solo_handle *handles[3];
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(submit(&nodes[i], samples[i], &handles[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        nodes[i].result.size = sizeof nodes[i].result;
        CHECK_EQ(solo_wait(handles[i], 10000, &nodes[i].result), 0);
    }
}

static inline void close_all(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(solo_leave(nodes[i].solo, 1, "finished"), 0);
        solo_close(nodes[i].solo);
    }
    close_master();
}

#endif
