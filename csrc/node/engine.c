/* solo_open and solo_close: the thread, the loop and what lives on it. */
#include "node/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "kernels/cpu.h"
#include "os/host.h"

#define TIMEOUT_MS_DEFAULT 300000u
#define LEASE_MS_DEFAULT   10000u

static int copy_text(char *to, size_t size, const char *from, const char *what)
{
    if (!from) {
        from = "";
    }
    if (strlen(from) >= size) {
        return err_set(SOLO_ELIMIT, "%s '%.40s...' is longer than %zu bytes", what, from, size - 1);
    }
    memcpy(to, from, strlen(from) + 1);
    return 0;
}

static int copy_texts(struct settings *settings, const struct solo_config *config)
{
    const char *job = config->job_id && config->job_id[0] ? config->job_id : "default";
    TRY(copy_text(settings->job_id, sizeof settings->job_id, job, "the job id"));
    TRY(copy_text(settings->node_name, sizeof settings->node_name, config->node_name,
                  "the node's name"));
    TRY(copy_text(settings->worker_url, sizeof settings->worker_url, config->worker_url,
                  "the worker url"));
    TRY(copy_text(settings->interval, sizeof settings->interval, config->interval, "the interval"));
    TRY(copy_text(settings->versions, sizeof settings->versions, config->versions, "the versions"));
    TRY(copy_text(settings->state_dir, sizeof settings->state_dir, config->state_dir,
                  "the state folder"));
    if (!settings->node_name[0]) {
        host_name(settings->node_name, sizeof settings->node_name);
    }
    if (config->token && config->token[0]) {
        settings->token = strdup(config->token);
        if (!settings->token) {
            return err_set(SOLO_ENOMEM, "no memory for the token");
        }
    }
    return 0;
}

static int copy_config(struct settings *settings, const struct solo_config *from)
{
    struct solo_config config = {0}; /* fields that the caller's header does not have are 0 */
    if (!from || from->size == 0) {
        return err_set(SOLO_EINVAL, "solo_open: config.size is not set");
    }
    memcpy(&config, from, from->size < sizeof config ? from->size : sizeof config);
    if (!config.master_url) {
        return err_set(SOLO_EINVAL, "solo_open: master_url is missing: tcp://HOST:PORT");
    }
    TRY(solo_url_parse(config.master_url, &settings->master));
    TRY(rule_parse(config.outer, &settings->rule));
    const struct codec *codec = NULL;
    TRY(codec_find(config.codec, &codec));
    snprintf(settings->codec, sizeof settings->codec, "%s", codec_name(codec));
    settings->node_rank = config.node_rank;
    settings->device_count = config.device_count ? config.device_count : 1;
    settings->min_nodes = config.min_nodes;
    settings->timeout_ms = config.timeout_ms ? config.timeout_ms : TIMEOUT_MS_DEFAULT;
    settings->lease_ms = config.lease_ms ? config.lease_ms : LEASE_MS_DEFAULT;
    settings->streams = config.streams;
    settings->start_step = config.start_step;
    settings->insecure = config.insecure != 0;
    settings->same_host_shm = config.same_host_shm >= 0;
    return copy_texts(settings, &config);
}

static int init_member(struct solo *solo)
{
    const struct settings *settings = &solo->settings;
    struct member_config config = {
        .timeout_us = (uint64_t)settings->timeout_ms * 1000,
        .lease_us = (uint64_t)settings->lease_ms * 1000,
    };
    snprintf(config.job_id, sizeof config.job_id, "%s", settings->job_id);
    struct msg_identity *identity = &config.identity;
    identity->node_rank = settings->node_rank;
    identity->device_count = settings->device_count;
    TRY(host_random(&identity->instance, sizeof identity->instance));
    TRY(host_random(&config.seed, sizeof config.seed));
    snprintf(identity->name, sizeof identity->name, "%s", settings->node_name);
    member_init(&solo->member, &config);
    return 0;
}

/* ---- the thread -------------------------------------------------------------------------- */

static void on_tick(void *context)
{
    struct solo *solo = context;
    struct member_event event = drive_event(solo, MEMBER_TICK);
    drive_feed(solo, &event);
}

static void on_look(void *context)
{
    struct solo *solo = context;
    report_state(solo);
    work_again(solo);
    loop_timer_set(solo->loop, &solo->look, loop_now(solo->loop) + ENGINE_LOOK_US);
}

static void run(void *context)
{
    struct solo *solo = context;
    cpu_float_reset();
    if (loop_run(solo->loop) < 0) {
        log_line(SOLO_LOG_ERROR, "solo: the loop ended: %s", err_text());
    }
    work_finish(solo);
    engine_fail(solo, err_set(SOLO_ECLOSED, "this node's engine was closed"));
    uplink_free(solo);
    peer_free_all(solo);
    mailbox_close(solo->mailbox); /* runs the letters that wait: each poster hears of the end */
}

static void start(void *context, void *argument)
{
    struct solo *solo = context;
    (void)argument;
    solo->tick.fn = on_tick;
    solo->look.fn = on_look;
    solo->tick.context = solo->look.context = solo;
    on_look(solo);
}

static int open_parts(struct solo *solo)
{
    TRY(loop_new(&solo->loop));
    TRY(mailbox_new(solo->loop, &solo->mailbox));
    TRY(init_member(solo));
    TRY(peer_listen(solo));
    return mailbox_post(solo->mailbox, start, solo, NULL);
}

static void free_parts(struct solo *solo)
{
    peer_free_all(solo);
    if (solo->has_saver) { /* before the mailbox, to which its thread posts until it has ended */
        saver_close(&solo->saver);
    }
    if (solo->mailbox) {
        mailbox_free(solo->mailbox);
    }
    loop_free(solo->loop);
    if (solo->has_job) {
        job_close(&solo->job);
    }
    work_deinit(solo);
    free(solo->member_memory);
    free(solo->shared.members);
    events_deinit(&solo->events);
    lock_deinit(&solo->shared.lock);
    free(solo->settings.token);
    free(solo);
}

int solo_open(const struct solo_config *config, struct solo **out)
{
    struct solo *solo = calloc(1, sizeof *solo);
    if (!solo) {
        return err_set(SOLO_ENOMEM, "no memory for the engine");
    }
    lock_init(&solo->shared.lock);
    events_init(&solo->events);
    for (uint32_t i = 0; i < SOLO_MEMBERS_MAX; i++) {
        solo->links[i].solo = solo;
        solo->links[i].index = i;
    }
    int rc = copy_config(&solo->settings, config);
    rc = rc < 0 ? rc : open_parts(solo);
    rc = rc < 0 ? rc : thread_start(&solo->thread, "solo", run, solo);
    if (rc < 0) {
        free_parts(solo);
        return rc;
    }
    *out = solo;
    return 0;
}

static void stop(void *context, void *argument)
{
    struct solo *solo = context;
    (void)argument;
    loop_stop(solo->loop);
}

void solo_close(struct solo *solo)
{
    if (!solo) {
        return;
    }
    while (mailbox_post(solo->mailbox, stop, solo, NULL) == SOLO_EAGAIN) {
        clock_sleep_until(clock_us() + 1000); /* MAILBOX_MAX letters wait: the thread takes them */
    }
    thread_join(&solo->thread);
    free_parts(solo);
}
