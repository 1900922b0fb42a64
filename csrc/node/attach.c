/* What callers ask for and wait for: attach, submit, leave; and how each of them ends. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/engine.h"

#define ATTACH_MARGIN_US 10000000u /* the machine's own deadline comes before this one */

/* ---- calls ------------------------------------------------------------------------------- */

struct call *call_new(struct solo *solo)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call) {
        (void)err_set(SOLO_ENOMEM, "no memory for a call to the engine");
        return NULL;
    }
    latch_init(&call->latch);
    lock_init(&call->lock);
    atomic_init(&call->owners, 2);
    call->solo = solo;
    return call;
}

static void call_drop(struct call *call)
{
    if (atomic_fetch_sub_explicit(&call->owners, 1, memory_order_acq_rel) == 1) {
        latch_deinit(&call->latch);
        lock_deinit(&call->lock);
        free(call);
    }
}

void call_finish(struct call *call, int rc, const char *text)
{
    latch_set(&call->latch, rc, text);
    call_drop(call);
}

bool call_borrow(struct call *call)
{
    lock_take(&call->lock);
    if (call->gave_up) {
        lock_give(&call->lock);
        return false;
    }
    return true;
}

void call_return(struct call *call)
{
    lock_give(&call->lock);
}

int call_do(struct call *call, mailbox_fn fn, uint64_t deadline_us, struct solo_joined *out)
{
    int rc = mailbox_post(call->solo->mailbox, fn, call->solo, call);
    if (rc < 0) { /* the engine will not take its share */
        atomic_store(&call->owners, 1);
        call_drop(call);
        return rc;
    }
    if (!latch_wait(&call->latch, deadline_us, &rc)) {
        lock_take(&call->lock); /* the engine may be in the middle of the caller's memory */
        call->gave_up = true;
        lock_give(&call->lock);
        rc = err_set(SOLO_ETIMEDOUT, "the engine did not answer in time");
    } else if (rc >= 0 && out) {
        *out = call->joined;
    }
    call_drop(call);
    return rc;
}

static int over_error(struct solo *solo)
{
    lock_take(&solo->shared.lock);
    int rc = err_set(solo->shared.over_rc, "%s", solo->shared.over_text);
    lock_give(&solo->shared.lock);
    return rc;
}

/* ---- the end of everything ------------------------------------------------------------- */

static void fail_all(struct solo *solo, int rc, const char *text)
{
    if (solo->attach) {
        call_finish(solo->attach, rc, text);
        solo->attach = NULL;
    }
    if (solo->handle) {
        atomic_store(&solo->shared.busy, false);
        handle_finish(solo->handle, rc, text, NULL);
        solo->handle = NULL;
    }
    if (solo->leaving && !solo->control_leaving) {
        call_finish(solo->leaving, 0, NULL);
        solo->leaving = NULL;
    }
}

/* Values that are being given are given whole, and who waits for them does not hear of the end. */
static void finish_giving(struct solo *solo)
{
    if (solo->giving) {
        job_walk_drop(&solo->job); /* it may be another's that has begun before */
        while (!attach_give(solo)) {
        }
    }
}

static void end(struct solo *solo, int rc, const char *text)
{
    bool first = !solo->ended;
    finish_giving(solo);
    solo->ended = true;
    if (first) {
        lock_take(&solo->shared.lock);
        solo->shared.over_rc = rc < 0 ? rc : SOLO_EOVER;
        snprintf(solo->shared.over_text, sizeof solo->shared.over_text, "%s", text);
        lock_give(&solo->shared.lock);
        atomic_store(&solo->shared.over, rc >= 0 && !solo->left);
    }
    fail_all(solo, rc < 0 ? rc : SOLO_EOVER, text);
}

void engine_over(struct solo *solo, int rc)
{
    log_line(rc < 0 && rc != SOLO_EOVER ? SOLO_LOG_WARN : SOLO_LOG_DEBUG, "solo: over: %s",
             solo->member.text);
    end(solo, rc, solo->member.text);
}

void engine_fail(struct solo *solo, int rc)
{
    char text[SOLO_TEXT_MAX];
    snprintf(text, sizeof text, "%s", err_text());
    end(solo, rc, text);
    if (solo->leaving) {
        call_finish(solo->leaving, 0, NULL);
        solo->leaving = NULL;
    }
    /* The others hear of it at once, and nothing of theirs is written here any more: what a round
     * needs may not be there. */
    uplink_free(solo);
    peer_close_all(solo);
}

/* ---- attach ------------------------------------------------------------------------------ */

static void on_saver_ready(void *context, void *argument)
{
    (void)argument;
    work_again(context);
}

static void on_saver_free(void *context) /* on the saver's thread */
{
    struct solo *solo = context;
    (void)mailbox_post(solo->mailbox, on_saver_ready, solo, NULL); /* full: the next look does it */
}

static void fill_settings(const struct solo *solo, struct msg_settings *out)
{
    const struct settings *settings = &solo->settings;
    snprintf(out->interval, sizeof out->interval, "%s", settings->interval);
    snprintf(out->codec, sizeof out->codec, "%s", settings->codec);
    snprintf(out->versions, sizeof out->versions, "%s", settings->versions);
    snprintf(out->solo_version, sizeof out->solo_version, "%s", SOLO_VERSION);
    rule_text(&settings->rule, out->outer, sizeof out->outer);
    const struct layout *layout = &solo->job.layout;
    out->layout_hash = layout->hash;
    out->tensor_count = (uint32_t)layout->caller_count;
    memcpy(out->elements, solo->job.state_plan.model.elements, sizeof out->elements);
}

/* On the caller's thread, before the loop knows of it: opening areas and reading a state file
 * take time. */
static int prepare_job(struct solo *solo, struct layout *layout)
{
    const struct settings *settings = &solo->settings;
    struct job_config config = {settings->codec, settings->rule};
    TRY(job_open(&solo->job, layout, &config));
    solo->has_job = true;
    TRY(job_warm(&solo->job));
    solo->member_memory = calloc(1, member_memory_bytes(&solo->job.state_plan.model) + 8);
    if (!solo->member_memory) {
        return err_set(SOLO_ENOMEM, "no memory for the map of the model's chunks");
    }
    solo->own = (struct msg_held){.job_step = settings->start_step};
    if (!settings->state_dir[0]) {
        return 0;
    }
    char name[SAVER_NAME_MAX];
    state_name(settings->job_id, settings->node_rank, name, sizeof name);
    (void)store_sweep(settings->state_dir, name);
    struct state_version version = {0};
    int rc = state_read(&solo->job, settings->state_dir, name, &version);
    if (rc >= 0) {
        solo->own = (struct msg_held){true, version.version, version.digest, version.job_step};
        log_line(SOLO_LOG_INFO, "solo: version %" PRIu64 " found in %s", version.version,
                 settings->state_dir);
    } else if (rc != SOLO_ENOENT) {
        return rc;
    }
    TRY(saver_open(&solo->saver, &solo->job, settings->state_dir, name, on_saver_free, solo));
    solo->has_saver = true;
    return 0;
}

static void on_attach(void *context, void *argument)
{
    struct solo *solo = context;
    struct call *call = argument;
    if (solo->ended) {
        call_finish(call, solo->shared.over_rc, solo->shared.over_text);
        return;
    }
    solo->attach = call;
    struct member_attach attach = {
        .model = solo->job.state_plan.model,
        .momentum = solo->job.momentum.base != NULL,
        .memory = solo->member_memory,
    };
    if (solo->own.held) {
        attach.held = solo->own;
    }
    fill_settings(solo, &attach.settings);
    /* Only now: a connection that has nothing to say yet would be closed at the other end. */
    struct member_event start = drive_event(solo, MEMBER_START);
    drive_feed(solo, &start);
    struct member_event event = drive_event(solo, MEMBER_ATTACH);
    event.attach = &attach;
    int rc = drive_feed(solo, &event);
    if (rc < 0 && solo->attach) {
        solo->attach = NULL;
        call_finish(call, rc, err_text());
    }
}

int solo_attach(struct solo *solo, const struct solo_tensor *tensors, size_t count,
                void *const *data, struct solo_joined *out)
{
    if (solo->has_job) {
        return err_set(SOLO_EINVAL, "solo_attach: this handle has its model already");
    }
    struct layout layout;
    TRY(layout_init(&layout, tensors, count));
    for (size_t i = 0; i < layout.tensor_count; i++) {
        if (!data || !data[layout.tensors[i].index]) {
            int rc = err_set(SOLO_EINVAL, "solo_attach: tensor %.128s has no data",
                             layout.tensors[i].name);
            layout_deinit(&layout);
            return rc;
        }
    }
    TRY(prepare_job(solo, &layout));
    struct call *call = call_new(solo);
    if (!call) {
        return SOLO_ENOMEM;
    }
    call->data = data;
    struct solo_joined joined;
    uint64_t deadline_us =
        clock_us() + (uint64_t)solo->settings.timeout_ms * 1000 + ATTACH_MARGIN_US;
    TRY(call_do(call, on_attach, deadline_us, &joined));
    if (out) {
        size_t size = out->size && out->size < sizeof joined ? out->size : sizeof joined;
        joined.size = out->size;
        memcpy(out, &joined, size);
    }
    return 0;
}

static void end_attach(struct solo *solo)
{
    struct call *call = solo->attach;
    solo->attach = NULL;
    report_state(solo);
    call_finish(call, 0, NULL);
}

void attach_finish(struct solo *solo, const struct member_result *result)
{
    struct call *call = solo->attach;
    if (!call) {
        return;
    }
    if (result->rc < 0) {
        solo->attach = NULL;
        call_finish(call, result->rc, solo->member.text);
        return;
    }
    call->joined = (struct solo_joined){
        .version = result->version,
        .job_step = result->job_step,
        .slot = result->slot,
        .member_count = result->member_count,
        .founder = result->founder,
        .replaced = result->replaced,
    };
    if (result->replaced) {
        solo->giving = true;
        work_add(solo, &(struct work){.kind = WORK_GIVE});
    } else {
        end_attach(solo);
    }
}

static bool give_to_attach(struct solo *solo)
{
    if (!call_borrow(solo->attach)) { /* nobody waits any more */
        job_walk_drop(&solo->job);
        return true;
    }
    bool whole = job_give_values(&solo->job, solo->attach->data);
    call_return(solo->attach);
    return whole;
}

/* ---- submit ------------------------------------------------------------------------------ */

struct submission {
    struct solo_contribution contribution;
    struct solo_handle *handle;
    void *const *data;
};

static void on_submit(void *context, void *argument)
{
    struct solo *solo = context;
    struct submission *submission = argument;
    struct solo_handle *handle = submission->handle;
    if (solo->ended) {
        atomic_store(&solo->shared.busy, false);
        handle_finish(handle, solo->shared.over_rc, solo->shared.over_text, NULL);
    } else {
        solo->handle = handle;
        solo->data = submission->data;
        solo->values_given = false;
        struct member_event event = drive_event(solo, MEMBER_SUBMIT);
        event.submit.samples = submission->contribution.samples;
        event.submit.steps = submission->contribution.steps;
        event.submit.lr_sum = submission->contribution.lr_sum;
        event.submit.final = submission->contribution.final != 0;
        int rc = drive_feed(solo, &event);
        if (rc < 0 && solo->handle) { /* before it has joined */
            solo->handle = NULL;
            atomic_store(&solo->shared.busy, false);
            handle_finish(handle, rc, err_text(), NULL);
        }
    }
    free(submission);
}

int solo_submit(struct solo *solo, void *const *data, const struct solo_contribution *contribution,
                struct solo_handle **out)
{
    if (!data || !contribution) {
        return err_set(SOLO_EINVAL, "solo_submit: there is no data, or no contribution");
    }
    if (atomic_load(&solo->shared.over)) {
        return over_error(solo);
    }
    bool idle = false;
    if (!atomic_compare_exchange_strong(&solo->shared.busy, &idle, true)) {
        return err_set(SOLO_EAGAIN, "a merge is in flight: wait for it first");
    }
    struct submission *submission = calloc(1, sizeof *submission);
    if (!submission || handle_new(&submission->handle) < 0) {
        free(submission);
        atomic_store(&solo->shared.busy, false);
        return err_set(SOLO_ENOMEM, "no memory for a merge");
    }
    size_t size = contribution->size;
    memcpy(&submission->contribution, contribution,
           size && size < sizeof *contribution ? size : sizeof *contribution);
    submission->data = data;
    struct solo_handle *handle = submission->handle; /* the loop frees the submission */
    int rc = mailbox_post(solo->mailbox, on_submit, solo, submission);
    if (rc < 0) {
        handle_drop(handle);
        handle_drop(handle);
        free(submission);
        atomic_store(&solo->shared.busy, false);
        return rc;
    }
    *out = handle;
    return 0;
}

static void end_merge(struct solo *solo, int rc)
{
    struct solo_handle *handle = solo->handle;
    solo->handle = NULL;
    solo->data = NULL;
    report_state(solo); /* before the caller can look */
    atomic_store(&solo->shared.busy, false);
    handle_finish(handle, rc, rc < 0 ? solo->member.text : NULL, &solo->result);
}

void merge_finish(struct solo *solo, const struct member_result *result)
{
    if (!solo->handle) {
        return;
    }
    solo->result = (struct solo_result){
        .outcome = result->outcome,
        .version = result->version,
        .round = result->round,
        .member_count = result->member_count,
        .contributor_count = result->contributor_count,
        .attempts = result->attempts,
        .zero_inner_momentum = rule_zeroes_inner(&solo->settings.rule),
        .digest = solo->job.digest,
        .sent_bytes = solo->sent_bytes,
        .received_bytes = solo->received_bytes,
        .wait_us = result->wait_us,
        .exchange_us = result->exchange_us,
        .apply_us = result->apply_us,
    };
    if (result->rc >= 0 && (!solo->values_given || result->outcome == SOLO_REJOINED)) {
        solo->giving = true;
        work_add(solo, &(struct work){.kind = WORK_GIVE});
    } else {
        end_merge(solo, result->rc);
    }
}

bool attach_give(struct solo *solo)
{
    bool to_attach = solo->attach != NULL;
    if (!(to_attach ? give_to_attach(solo) : job_give_values(&solo->job, solo->data))) {
        return false;
    }
    solo->giving = false;
    if (to_attach) {
        end_attach(solo);
    } else {
        end_merge(solo, 0);
    }
    return true;
}

/* ---- leave ------------------------------------------------------------------------------- */

static void on_leave(void *context, void *argument)
{
    struct solo *solo = context;
    struct call *call = argument;
    if (solo->ended || solo->leaving) {
        call_finish(call, 0, NULL);
        return;
    }
    solo->leaving = call;
    solo->left = true;
    struct member_event event = drive_event(solo, MEMBER_LEAVE);
    event.ok = call->finished;
    event.text = call->reason;
    drive_feed(solo, &event);
}

int solo_leave(struct solo *solo, int finished, const char *reason)
{
    struct call *call = call_new(solo);
    if (!call) {
        return SOLO_ENOMEM;
    }
    call->finished = finished != 0;
    snprintf(call->reason, sizeof call->reason, "%s", reason ? reason : "");
    return call_do(call, on_leave, clock_us() + ENGINE_LEAVE_US, NULL);
}
