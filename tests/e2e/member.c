/* member.c - a node, or the master, of a job for the end-to-end tests: a model whose "training"
 * is known to the last bit, merged round after round; one JSON line on stdout per event.
 *
 * member URL --rank R [...]: a node.   member URL --master [...]: the master.
 * --die-on TEXT / --stop-on TEXT: SIGKILL / SIGSTOP to itself at the first debug line of the
 * library that has TEXT in it, so each phase of a round can be hit. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "solo.h"

struct options {
    struct solo_config node;
    struct solo_master_config master;
    int is_master, final, quiet;
    uint32_t rounds, step_ms, nan_round, samples, linger_ms;
    uint64_t elements;
    int half, buffers, memcpys;
    const char *die_on, *stop_on, *finish_file;
};

static struct options options;
static struct solo_master *running_master;
static volatile sig_atomic_t asked_to_leave;

static void on_terminate(int number)
{
    (void)number;
    asked_to_leave = 1;
    if (running_master) {
        solo_master_stop(running_master); /* NOLINT(bugprone-signal-handler): solo.h allows it */
    }
}

static void on_log(void *context, enum solo_log_level level, const char *text)
{
    (void)context;
    if (!options.quiet || level >= SOLO_LOG_WARN) {
        fprintf(stderr, "[%d %d] %s\n", options.is_master ? -1 : (int)options.node.node_rank,
                (int)level, text);
    }
    if (options.die_on && strstr(text, options.die_on)) {
        kill(getpid(), SIGKILL);
    }
    if (options.stop_on && strstr(text, options.stop_on)) {
        options.stop_on = NULL;
        kill(getpid(), SIGSTOP);
    }
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void fail(const char *what, int rc)
{
    printf("{\"event\": \"error\", \"what\": \"%s\", \"code\": \"%s\", \"text\": \"", what,
           solo_error_name(rc));
    for (const char *at = solo_error_text(); *at; at++) {
        if (*at == '"' || *at == '\\') {
            putchar('\\');
        }
        putchar(*at);
    }
    printf("\"}\n");
    fflush(stdout);
}

/* ---- the model ------------------------------------------------------------------------- */

#define TENSORS 5
static struct solo_tensor tensors[TENSORS] = {
    {"weight", 0, SOLO_F32, SOLO_PARAM},      {"bias", 8, SOLO_F32, SOLO_EXACT},
    {"running_mean", 4, SOLO_F32, SOLO_MEAN}, {"batches", 1, SOLO_I64, SOLO_MAX},
    {"half", 16, SOLO_F16, SOLO_PARAM},
};
static void *data[TENSORS];
static int tensor_count;

static void make_model(void)
{
    tensors[0].count = options.elements;
    tensor_count = options.elements == 0 && !options.buffers ? 0
                   : options.half                            ? 5
                   : options.buffers                         ? 4
                                                             : 1;
    for (int i = 0; i < tensor_count; i++) {
        data[i] = calloc(tensors[i].count + 1, solo_dtype_bytes(tensors[i].dtype));
    }
    float *weight = tensor_count ? data[0] : NULL;
    for (uint64_t i = 0; weight && i < options.elements; i++) {
        weight[i] = (float)(options.node.node_rank + 1); /* differs: only one can be the anchor */
    }
}

/* One "interval of training": adds (rank + 1) / 4 to each weight, so a mean of the members is
 * exact in fp32; the buffers move by other amounts. */
static void train(uint32_t round)
{
    float step = (float)(options.node.node_rank + 1) / 4;
    float *weight = tensor_count ? data[0] : NULL;
    for (uint64_t i = 0; weight && i < options.elements; i++) {
        weight[i] += step;
    }
    if (tensor_count >= 4) {
        for (int i = 0; i < 8; i++) {
            ((float *)data[1])[i] += 2 * step;
        }
        for (int i = 0; i < 4; i++) {
            ((float *)data[2])[i] = (float)options.node.node_rank;
        }
        *(int64_t *)data[3] += 1 + options.node.node_rank;
    }
    if (options.nan_round && round == options.nan_round && weight) {
        weight[options.elements / 2] = NAN;
    }
    struct timespec pause = {options.step_ms / 1000, (long)(options.step_ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

static double first(int tensor)
{
    if (tensor >= tensor_count || tensors[tensor].count == 0) {
        return 0;
    }
    return tensors[tensor].dtype == SOLO_I64 ? (double)*(int64_t *)data[tensor]
                                             : (double)*(float *)data[tensor];
}

/* ---- rounds ---------------------------------------------------------------------------- */

static void print_events(struct solo *solo)
{
    char line[4096];
    while (solo_next_event(solo, line, sizeof line) > 0) {
        if (!options.quiet) {
            fprintf(stderr, "[%u event] %s\n", options.node.node_rank, line);
        }
    }
}

static int wait_for(struct solo *solo, struct solo_handle *handle, struct solo_result *result)
{
    for (int waits = 0;; waits++) {
        int rc = solo_wait(handle, 200, result);
        if (rc != SOLO_EAGAIN) {
            return rc;
        }
        if (asked_to_leave && waits == 5) {
            solo_leave(solo, 0, "terminated"); /* ends the merge with SOLO_ECLOSED */
        }
        char whom[SOLO_TEXT_MAX];
        solo_waiting_for(solo, whom, sizeof whom);
        if (whom[0] && waits % 5 == 4 && !options.quiet) {
            fprintf(stderr, "[%u] waiting for %s\n", options.node.node_rank, whom);
        }
    }
}

static int merge(struct solo *solo, uint32_t round, int final)
{
    struct solo_contribution contribution = {.size = sizeof contribution,
                                             .samples = options.samples,
                                             .steps = 10,
                                             .lr_sum = 1,
                                             .final = final};
    struct solo_result result = {.size = sizeof result};
    struct solo_handle *handle;
    uint64_t began_us = now_us();
    int rc = solo_submit(solo, data, &contribution, &handle);
    rc = rc < 0 ? rc : wait_for(solo, handle, &result);
    if (rc < 0 && asked_to_leave) {
        return 0;
    }
    if (rc < 0) {
        fail("merge", rc);
        return rc;
    }
    static const char *const outcomes[] = {"merged", "alone", "rejoined"};
    printf("{\"event\": \"round\", \"local\": %u, \"outcome\": \"%s\", \"version\": %" PRIu64
           ", \"round\": %" PRIu64 ", \"members\": %u, \"contributors\": %u, \"attempts\": %u"
           ", \"digest\": \"%016" PRIx64 "\", \"weight\": %.9g, \"bias\": %.9g, \"mean\": %.9g"
           ", \"max\": %.17g, \"wait_us\": %" PRIu64 ", \"exchange_us\": %" PRIu64
           ", \"apply_us\": %" PRIu64 ", \"sent\": %" PRIu64 ", \"began_us\": %" PRIu64
           ", \"ended_us\": %" PRIu64 "}\n",
           round, outcomes[result.outcome], result.version, result.round, result.member_count,
           result.contributor_count, result.attempts, result.digest, first(0), first(1), first(2),
           first(3), result.wait_us, result.exchange_us, result.apply_us, result.sent_bytes,
           began_us, now_us());
    fflush(stdout);
    return 0;
}

/* The unit of the benchmarks: one copy of the model, by this process, now. */
static void print_memcpy(void)
{
    size_t bytes = options.elements * sizeof(float);
    char *from = calloc(1, bytes + 1), *to = calloc(1, bytes + 1);
    if (from) {
        memset(from, 1, bytes); /* memory of its own: untouched, all of it is one page of zeros */
    }
    for (int i = 0; from && to && i < 12; i++) {
        uint64_t began_us = now_us();
        memcpy(to, from, bytes);
        from[i] = to[i + 1];
        if (i > 2) {
            printf("{\"event\": \"memcpy\", \"us\": %" PRIu64 "}\n", now_us() - began_us);
        }
    }
    free(from);
    free(to);
}

static int run_rounds(struct solo *solo)
{
    for (uint32_t round = 1; options.rounds == 0 || round <= options.rounds; round++) {
        if (asked_to_leave || solo_over(solo)) {
            break;
        }
        train(round);
        if (merge(solo, round, options.final && round == options.rounds) < 0) {
            return 1;
        }
        print_events(solo);
        if (options.finish_file && access(options.finish_file, F_OK) == 0) {
            break;
        }
    }
    return 0;
}

static int run_node(void)
{
    make_model();
    struct solo *solo;
    int rc = solo_open(&options.node, &solo);
    if (rc < 0) {
        fail("open", rc);
        return 1;
    }
    struct solo_joined joined = {.size = sizeof joined};
    rc = solo_attach(solo, tensors, (size_t)tensor_count, data, &joined);
    if (rc < 0) {
        fail("attach", rc);
        solo_close(solo);
        return 1;
    }
    printf("{\"event\": \"joined\", \"version\": %" PRIu64 ", \"slot\": %u, \"members\": %u, "
           "\"founder\": %d, \"replaced\": %d, \"weight\": %.9g, \"job_step\": %" PRIu64 "}\n",
           joined.version, joined.slot, joined.member_count, joined.founder, joined.replaced,
           first(0), joined.job_step);
    fflush(stdout);
    if (options.memcpys) {
        print_memcpy();
    }
    int status = run_rounds(solo);
    print_events(solo);
    if (status == 0) {
        solo_leave(solo, !asked_to_leave, asked_to_leave ? "terminated" : "finished");
    }
    int over = solo_over(solo);
    solo_close(solo);
    printf("{\"event\": \"end\", \"over\": %d}\n", over);
    return status;
}

static int run_master(void)
{
    int rc = solo_master_open(&options.master, &running_master);
    if (rc < 0) {
        fail("master", rc);
        return 1;
    }
    printf("{\"event\": \"listening\"}\n");
    fflush(stdout);
    rc = solo_master_run(running_master);
    if (rc < 0) {
        fail("master", rc);
    }
    struct solo_master *master = running_master;
    running_master = NULL;
    solo_master_close(master);
    printf("{\"event\": \"end\"}\n");
    return rc < 0;
}

/* ---- options --------------------------------------------------------------------------- */

static int set_flag(const char *name)
{
    if (strcmp(name, "--master") == 0) {
        options.is_master = 1;
    } else if (strcmp(name, "--final") == 0) {
        options.final = 1;
    } else if (strcmp(name, "--quiet") == 0) {
        options.quiet = 1;
    } else if (strcmp(name, "--half") == 0) {
        options.half = 1;
    } else if (strcmp(name, "--memcpys") == 0) {
        options.memcpys = 1;
    } else if (strcmp(name, "--buffers") == 0) {
        options.buffers = 1;
    } else if (strcmp(name, "--tcp") == 0) {
        options.node.same_host_shm = -1;
    } else if (strcmp(name, "--linger") == 0) {
        options.master.linger = 1;
    } else {
        return 0;
    }
    return 1;
}

static int set_text(const char *name, const char *value)
{
    const struct {
        const char *name;
        const char **to, **also;
    } texts[] = {
        {"--job", &options.node.job_id, &options.master.job_id},
        {"--token", &options.node.token, &options.master.token},
        {"--codec", &options.node.codec, NULL},
        {"--outer", &options.node.outer, NULL},
        {"--interval", &options.node.interval, NULL},
        {"--versions", &options.node.versions, NULL},
        {"--state-dir", &options.node.state_dir, NULL},
        {"--worker-url", &options.node.worker_url, NULL},
        {"--name", &options.node.node_name, NULL},
        {"--events", &options.master.events_path, NULL},
        {"--die-on", &options.die_on, NULL},
        {"--stop-on", &options.stop_on, NULL},
        {"--finish-file", &options.finish_file, NULL},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(name, texts[i].name) == 0) {
            *texts[i].to = value;
            if (texts[i].also) {
                *texts[i].also = value;
            }
            return 1;
        }
    }
    return 0;
}

static int set_number(const char *name, const char *value)
{
    uint32_t *both = NULL, *to = NULL;
    if (strcmp(name, "--elements") == 0) {
        options.elements = strtoull(value, NULL, 10);
        return 1;
    }
    if (strcmp(name, "--rank") == 0) {
        to = &options.node.node_rank;
    } else if (strcmp(name, "--rounds") == 0) {
        to = &options.rounds;
    } else if (strcmp(name, "--step-ms") == 0) {
        to = &options.step_ms;
    } else if (strcmp(name, "--samples") == 0) {
        to = &options.samples;
    } else if (strcmp(name, "--nan-round") == 0) {
        to = &options.nan_round;
    } else if (strcmp(name, "--streams") == 0) {
        to = &options.node.streams;
    } else if (strcmp(name, "--expected") == 0) {
        to = &options.master.expected_nodes;
    } else if (strcmp(name, "--min-nodes") == 0) {
        to = &options.node.min_nodes;
        both = &options.master.min_nodes;
    } else if (strcmp(name, "--timeout-ms") == 0) {
        to = &options.node.timeout_ms;
        both = &options.master.timeout_ms;
    } else if (strcmp(name, "--lease-ms") == 0) {
        to = &options.node.lease_ms;
        both = &options.master.lease_ms;
    }
    if (!to) {
        return 0;
    }
    *to = (uint32_t)strtoul(value, NULL, 10);
    if (both) {
        *both = *to;
    }
    return 1;
}

int main(int count, char **arguments)
{
    options = (struct options){.node = {.size = sizeof options.node, .device_count = 1},
                               .master = {.size = sizeof options.master},
                               .rounds = 5,
                               .elements = 1000,
                               .samples = 10};
    if (count < 2) {
        fprintf(stderr, "usage: member URL [--master] [options]\n");
        return 2;
    }
    options.node.master_url = options.master.url = arguments[1];
    for (int i = 2; i < count; i++) {
        int known = set_flag(arguments[i]);
        if (!known && i + 1 < count) {
            known = set_text(arguments[i], arguments[i + 1]) ||
                    set_number(arguments[i], arguments[i + 1]);
            i++;
        }
        if (!known) {
            fprintf(stderr, "member: unknown option %s\n", arguments[i]);
            return 2;
        }
    }
    signal(SIGTERM, on_terminate);
    solo_log_set(on_log, NULL, SOLO_LOG_DEBUG);
    return options.is_master ? run_master() : run_node();
}
