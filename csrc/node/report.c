/* What other threads may see of the engine: events, log lines, the member list, the words on
 * whom it waits for. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "node/engine.h"
#include "node/report.h"

#define READ_ELEMENTS (UINT64_C(1) << 18) /* of an anchor, at a time: a fraction of a millisecond */

/* ---- events ------------------------------------------------------------------------------ */

size_t report_line(const struct event *event, char *line, size_t size)
{
    struct json json = event_begin(line, size, event_kind_name(event->kind));
    if (event->rank != EVENT_NOBODY) {
        json_u64(&json, "node", event->rank);
    }
    if (event->other_rank != EVENT_NOBODY) {
        json_u64(&json, "other", event->other_rank);
    }
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"round", event->id.round},
        {"attempt", event->id.attempt},
        {"version", event->version},
        {"members", event->member_count},
        {"contributors", event->contributor_count},
        {"bytes", event->bytes},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].value) {
            json_u64(&json, numbers[i].key, numbers[i].value);
        }
    }
    if (event->digest) {
        json_hex(&json, "digest", event->digest);
    }
    if (event->kind == EVENT_COMMITTED) {
        json_millionths(&json, "steps", event->steps_millionths);
        json_millionths(&json, "waiting", event->wait_us);
        json_millionths(&json, "exchange", event->us);
        json_millionths(&json, "apply_before", event->apply_us);
    } else if (event->us) {
        json_millionths(&json, "seconds", event->us);
    }
    if (event->rc) {
        json_text(&json, "error", solo_error_name(event->rc));
    }
    if (event->text[0]) {
        json_text(&json, "text", event->text);
    }
    return json_end(&json);
}

void report_event(struct solo *solo, const struct event *event)
{
    char line[EVENTS_LINE_MAX];
    report_line(event, line, sizeof line);
    events_put(&solo->events, line);
    log_line(SOLO_LOG_DEBUG, "solo: %s", line);
}

int solo_next_event(struct solo *solo, char *json, size_t size)
{
    return events_next(&solo->events, json, size);
}

/* ---- the member list ----------------------------------------------------------------------- */

static void fill_member(const struct solo *solo, uint32_t slot, struct solo_member *out)
{
    const struct member *member = &solo->member;
    bool self = member->slot_peers[slot] == ROUND_SELF;
    const struct msg_identity *own = &member->config.identity;
    const struct peer *peer = self ? NULL : &member->peers[member->slot_peers[slot]];
    out->slot = slot;
    out->node_rank = member->slot_ranks[slot];
    out->device_count = member->device_counts[slot];
    snprintf(out->name, sizeof out->name, "%s", self ? own->name : peer->name);
    snprintf(out->address, sizeof out->address, "%s", self ? own->address : peer->address);
}

static void renew_members(struct solo *solo)
{
    const struct member *member = &solo->member;
    size_t count = member->listed_count;
    struct solo_member *list = calloc(count + 1, sizeof *list);
    if (!list) {
        return; /* the old list stays; it is for display and sampling */
    }
    for (uint32_t slot = 0; slot < count; slot++) {
        fill_member(solo, slot, &list[slot]);
    }
    lock_take(&solo->shared.lock);
    free(solo->shared.members);
    solo->shared.members = list;
    solo->shared.member_count = (uint32_t)count;
    lock_give(&solo->shared.lock);
}

int solo_members(const struct solo *solo, struct solo_member *out, size_t capacity)
{
    struct shared *shared = (struct shared *)&solo->shared; /* its lock is not part of its value */
    lock_take(&shared->lock);
    size_t count = shared->member_count < capacity ? shared->member_count : capacity;
    if (count) {
        memcpy(out, shared->members, count * sizeof *out);
    }
    lock_give(&shared->lock);
    return (int)count;
}

/* ---- the rest ------------------------------------------------------------------------------ */

void report_state(struct solo *solo)
{
    const struct member *member = &solo->member;
    atomic_store_explicit(&solo->shared.version, member->held.version, memory_order_relaxed);
    atomic_store_explicit(&solo->shared.job_step, member->held.job_step, memory_order_relaxed);
    if (epoch_compare(member->epoch, solo->reported_epoch) != 0) {
        solo->reported_epoch = member->epoch;
        renew_members(solo);
    }
    char words[SOLO_TEXT_MAX] = "";
    if (!solo->ended && (solo->attach || solo->handle)) {
        member_waiting_for(member, words, sizeof words);
    }
    lock_take(&solo->shared.lock);
    memcpy(solo->shared.waiting_for, words, sizeof words);
    lock_give(&solo->shared.lock);
}

int solo_waiting_for(struct solo *solo, char *text, size_t size)
{
    if (size == 0) {
        return 0;
    }
    lock_take(&solo->shared.lock);
    snprintf(text, size, "%s", solo->shared.waiting_for);
    lock_give(&solo->shared.lock);
    return (int)strlen(text);
}

int solo_due(const struct solo *solo)
{
    return atomic_load_explicit(&solo->shared.due, memory_order_relaxed);
}

int solo_over(const struct solo *solo)
{
    return atomic_load_explicit(&solo->shared.over, memory_order_relaxed);
}

uint64_t solo_job_version(const struct solo *solo)
{
    return atomic_load_explicit(&solo->shared.version, memory_order_relaxed);
}

uint64_t solo_job_step(const struct solo *solo)
{
    return atomic_load_explicit(&solo->shared.job_step, memory_order_relaxed);
}

/* The next piece; 1: there is more. A node that fell out takes another anchor at any time: then
 * from the beginning. */
static int read_anchor(const struct solo *solo, struct call *call)
{
    const struct job *job = &solo->job;
    if (!solo->has_job || !job->has_anchor || call->tensor >= job->layout.caller_count) {
        return err_set(SOLO_EINVAL, "there is no anchor of tensor %zu", call->tensor);
    }
    uint32_t place = job->layout.place[call->tensor];
    if (place == LAYOUT_NONE) {
        return 0; /* no elements */
    }
    const struct layout_tensor *tensor = &job->layout.tensors[place];
    if (tensor->role == SOLO_MAX) {
        return err_set(SOLO_ENOTSUP, "%s is merged by maximum and has no fp32 anchor",
                       tensor->name);
    }
    call->at = call->digest == job->digest ? call->at : 0;
    call->digest = job->digest;
    uint64_t left = tensor->count - call->at, from = tensor->start + call->at;
    uint64_t count = left < READ_ELEMENTS ? left : READ_ELEMENTS;
    if (call->anchor) {
        memcpy(call->anchor + call->at, (const float *)job->theta.base + from,
               count * sizeof(float));
    }
    if (call->momentum && job->momentum.base && tensor->role != SOLO_MEAN) {
        memcpy(call->momentum + call->at, (const float *)job->momentum.base + from,
               count * sizeof(float));
    } else if (call->momentum) {
        memset(call->momentum + call->at, 0, count * sizeof(float));
    }
    call->at += count;
    return call->at < tensor->count;
}

static void on_read(void *context, void *argument)
{
    struct solo *solo = context;
    struct call *call = argument;
    int rc = 0, posted = 0;
    if (call_borrow(call)) {
        do { /* the rest behind what has come meanwhile: heartbeats do not wait for a large tensor */
            rc = read_anchor(solo, call);
            posted = rc > 0 ? mailbox_post(solo->mailbox, on_read, solo, call) : 0;
        } while (posted == SOLO_EAGAIN);
        call_return(call);
    }
    if (rc > 0 && posted == 0) {
        return;
    }
    rc = posted < 0 ? posted : rc;
    call_finish(call, rc, rc < 0 ? err_text() : NULL);
}

/* Through the loop thread, because a node that fell out fetches a new anchor at any time. */
int solo_read_anchor(struct solo *solo, size_t tensor, float *anchor, float *momentum)
{
    if (atomic_load(&solo->shared.busy)) {
        return err_set(SOLO_EAGAIN, "solo_read_anchor: a merge is in flight");
    }
    struct call *call = call_new(solo);
    if (!call) {
        return SOLO_ENOMEM;
    }
    call->tensor = tensor;
    call->anchor = anchor;
    call->momentum = momentum;
    uint64_t deadline_us = clock_us() + (uint64_t)solo->settings.timeout_ms * 1000;
    return call_do(call, on_read, deadline_us, NULL);
}

uint64_t solo_memory_needed(const struct solo_config *config, const struct solo_tensor *tensors,
                            size_t count)
{
    struct solo_config known = {0}; /* fields that the caller's header does not have are 0 */
    struct layout layout;
    memcpy(&known, config, config->size < sizeof known ? config->size : sizeof known);
    if (layout_init(&layout, tensors, count) < 0) {
        return 0;
    }
    struct job_config job = {known.codec, {0}};
    if (rule_parse(known.outer, &job.rule) < 0) {
        job.rule = (struct rule){0};
    }
    uint64_t bytes = job_bytes(&layout, &job) + sizeof(struct solo);
    layout_deinit(&layout);
    return bytes;
}
