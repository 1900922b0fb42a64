/* What takes time is done here, a slice per turn of the loop, so that heartbeats and frames
 * pass in between; and what an action finishes at once comes back as an event from here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "kernels/digest.h"
#include "node/engine.h"

#define WORK_SLICE_US   1000u       /* of one turn */
#define WORK_TWIN_BYTES (16u << 10) /* of each chunk are compared to find two equal deltas */

/* ---- the two queues ---------------------------------------------------------------------- */

static int push(struct works *works, const struct work *work)
{
    if (works->count == works->capacity) {
        uint32_t capacity = works->capacity ? 2 * works->capacity : 64;
        struct work *grown = malloc(capacity * sizeof *grown);
        if (!grown) {
            return err_set(SOLO_ENOMEM, "no memory to remember %u pieces of work", capacity);
        }
        for (uint32_t i = 0; i < works->count; i++) {
            grown[i] = works->at[(works->first + i) % works->capacity];
        }
        free(works->at);
        works->at = grown;
        works->first = 0;
        works->capacity = capacity;
    }
    works->at[(works->first + works->count++) % works->capacity] = *work;
    return 0;
}

static struct work *head(const struct works *works)
{
    return &works->at[works->first];
}

static void pop(struct works *works)
{
    works->first = (works->first + 1) % works->capacity;
    works->count--;
}

static void on_turn(void *context);

static void wake(struct solo *solo)
{
    if (!solo->work_queued) {
        solo->work_queued = true;
        solo->work_task.fn = on_turn;
        solo->work_task.context = solo;
        loop_later(solo->loop, &solo->work_task);
    }
}

void work_add(struct solo *solo, const struct work *work)
{
    bool news = work->kind == WORK_MASTER_DOWN || work->kind == WORK_LINK_DOWN;
    int rc = push(news ? &solo->news : &solo->works, work);
    if (rc < 0) {
        engine_fail(solo, rc);
        return;
    }
    wake(solo);
}

void work_again(struct solo *solo)
{
    if (solo->fetching_over) {
        peer_resume_all(solo);
    }
    if (solo->works.count && !solo->ended) {
        wake(solo);
    }
}

void work_deinit(struct solo *solo)
{
    free(solo->news.at);
    free(solo->works.at);
    solo->news = solo->works = (struct works){0};
}

/* ---- a round begins and is dropped ------------------------------------------------------- */

/* An outer step or an anchor that waited for the saver is not coming: it may go on. */
static void release_saver(struct solo *solo)
{
    if (solo->has_saver && solo->works.count == 0 && !solo->fetching_over) {
        saver_release(&solo->saver);
    }
}

static void forget_round_work(struct solo *solo)
{
    uint32_t count = solo->works.count;
    for (uint32_t i = 0; i < count; i++) {
        struct work work = *head(&solo->works);
        pop(&solo->works);
        if (work.kind == WORK_ADOPT || work.kind == WORK_GIVE) {
            (void)push(&solo->works, &work); /* into the place that it had */
        }
    }
    solo->applying = false;
    release_saver(solo);
}

void work_drop_round(struct solo *solo)
{
    log_line(SOLO_LOG_DEBUG, "solo: round dropped");
    forget_round_work(solo);
    peer_release_all(solo, &solo->job.inbox);
    peer_release_all(solo, &solo->job.mean);
}

void work_drop_serves(struct solo *solo)
{
    peer_release_all(solo, &solo->job.theta);
    peer_release_all(solo, &solo->job.integers);
    peer_release_all(solo, &solo->job.momentum);
}

void work_round(struct solo *solo, bool fresh_residual)
{
    const struct round *round = &solo->member.round;
    log_line(SOLO_LOG_DEBUG, "solo: round %" PRIu64 " attempt %u begins, %u members",
             round->id.round, round->id.attempt, round->count);
    forget_round_work(solo);
    solo->delta_digest = 0;
    solo->sent_bytes = solo->received_bytes = 0;
    struct job_round next = {
        .plan = round->plan, .slot = round->slot, .keep_residuals = !fresh_residual};
    for (uint32_t slot = 0; slot < round->count && round->weight_sum; slot++) {
        next.weights[slot] = (float)((double)round->weights[slot] / (double)round->weight_sum);
    }
    double lr_mean = round->steps > 0 ? round->lr_sum / round->steps : 0;
    next.step = rule_resolve(&solo->settings.rule, round->contributors, round->version, lr_mean);
    int rc = job_begin(&solo->job, &next, solo->data);
    if (rc < 0) {
        engine_fail(solo, rc);
    }
}

static void note_change(struct solo *solo)
{
    if (solo->has_saver) {
        saver_change(&solo->saver);
    }
}

/* Nothing is written any more to where an anchor is being fetched. */
static void release_fetch(struct solo *solo)
{
    const struct job *job = &solo->job;
    peer_release_all(solo, &job->next_theta);
    peer_release_all(solo, &job->next_integers);
    peer_release_all(solo, &job->next_momentum);
    if (!job->has_anchor) {
        peer_release_all(solo, &job->theta);
        peer_release_all(solo, &job->integers);
        peer_release_all(solo, &job->momentum);
    }
    solo->fetching = solo->fetching_over = false;
}

/* The saver may be reading what is held, and others may be sent it. */
bool work_fetch_room(struct solo *solo)
{
    if (!solo->fetching_over || !solo->job.has_anchor) {
        return true;
    }
    if (solo->has_saver && !saver_hold(&solo->saver)) {
        return false;
    }
    note_change(solo);
    work_drop_serves(solo);
    solo->job.has_anchor = false;
    return true;
}

void work_fetch(struct solo *solo, uint64_t version)
{
    if (solo->fetching && solo->fetch_version == version) {
        return;
    }
    release_fetch(solo);
    solo->fetching = true;
    solo->fetch_version = version;
    if (job_fetch_begin(&solo->job) < 0) {
        log_line(SOLO_LOG_WARN, "solo: %s; it is fetched over the one held", err_text());
        solo->fetching_over = true;
    }
}

/* ---- one piece of work ------------------------------------------------------------------- */

static bool all_zero(const uint8_t *bytes, size_t size)
{
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

/* What equal deltas are found by. */
static void note_delta(struct solo *solo, uint32_t chunk)
{
    uint32_t size;
    const void *bytes = job_delta(&solo->job, chunk, &size);
    size = size < WORK_TWIN_BYTES ? size : WORK_TWIN_BYTES;
    if (!all_zero(bytes, size)) {
        solo->delta_digest += digest_chunk(chunk, bytes, size);
    }
}

static void feed_done(struct solo *solo, enum member_event_type type, const struct work *work,
                      int rc)
{
    struct member_event event = drive_event(solo, type);
    event.id = work->id;
    event.chunk = work->chunk;
    event.ok = rc >= 0;
    event.text = err_text();
    drive_feed(solo, &event);
}

static void do_encode(struct solo *solo, const struct work *work)
{
    int rc = job_encode(&solo->job, work->chunk);
    if (rc >= 0 && !job_owns(&solo->job, work->chunk)) {
        note_delta(solo, work->chunk);
    }
    feed_done(solo, MEMBER_ENCODED, work, rc);
}

/* What is not finite, of ours or in the sum, is told as a failed encoding, which it is. */
static void do_reduce(struct solo *solo, const struct work *work)
{
    int rc = job_reduce(&solo->job, work->chunk);
    if (rc >= 0 && solo->job.round.weights[solo->job.round.slot] != 0) {
        note_delta(solo, work->chunk);
    }
    feed_done(solo, rc < 0 ? MEMBER_ENCODED : MEMBER_REDUCED, work, rc);
}

static void offer_state(struct solo *solo)
{
    const struct msg_held *held = &solo->member.held;
    /* An anchor that was fetched wrong is not in place: what is must not be saved as its version. */
    bool whole = held->held && held->digest == solo->job.digest && solo->job.has_anchor;
    if (solo->has_saver && whole) {
        saver_offer(&solo->saver, held->version, held->job_step, solo->job.digest);
    }
}

/* One block; true: the last. */
static bool do_apply(struct solo *solo, const struct work *work)
{
    if (!solo->applying) {
        log_line(SOLO_LOG_DEBUG, "solo: applying round %" PRIu64, work->id.round);
        solo->applying = true;
        if (solo->fetching) { /* given up before its end, and not needed any more */
            release_fetch(solo);
            job_fetch_abandon(&solo->job);
        }
        note_change(solo);
        job_apply_begin(&solo->job);
    }
    if (!job_apply(&solo->job)) {
        return false;
    }
    solo->applying = false;
    solo->values_given = true;
    struct work done = *work;
    pop(&solo->works);
    struct member_event event = drive_event(solo, MEMBER_APPLIED);
    event.id = done.id;
    event.digest = solo->job.digest;
    drive_feed(solo, &event);
    log_line(SOLO_LOG_DEBUG, "solo: applied round %" PRIu64, done.id.round);
    offer_state(solo);
    return true;
}

/* The job begins with the values that the caller waits with. */
static bool take_values(struct solo *solo)
{
    if (!solo->attach || !call_borrow(solo->attach)) {
        engine_fail(solo, err_set(SOLO_ECLOSED, "this node waits no more to be let in"));
        return false;
    }
    bool whole = job_take_values(&solo->job, solo->attach->data);
    call_return(solo->attach);
    return whole;
}

static void begin_adopt(struct solo *solo, const struct work *work)
{
    solo->adopting = true;
    release_fetch(solo);
    note_change(solo);
    if (work->own) {
        job_fetch_abandon(&solo->job);
    }
}

/* One block. */
static void do_adopt(struct solo *solo, const struct work *work)
{
    if (!solo->adopting) {
        begin_adopt(solo, work);
    }
    struct job *job = &solo->job;
    if (work->own ? !job->has_anchor && !take_values(solo) : !job_fetch_hash(job)) {
        return;
    }
    struct work done = *work;
    pop(&solo->works);
    solo->adopting = false;
    struct member_event event = drive_event(solo, MEMBER_ADOPTED);
    event.digest = done.own ? job->digest : job_fetch_end(job, solo->member.catchup.digest);
    drive_feed(solo, &event);
    log_line(SOLO_LOG_DEBUG, "solo: adopted version %" PRIu64 "%s", solo->member.held.version,
             done.own ? " of its own" : "");
    offer_state(solo);
}

static void tell(struct solo *solo, const struct work *work)
{
    if (work->kind == WORK_MASTER_DOWN) {
        if (work->generation == solo->control_generation) {
            struct member_event event = drive_event(solo, MEMBER_MASTER_DOWN);
            event.rc = work->rc;
            event.text = solo->control_text;
            drive_feed(solo, &event);
        }
        return;
    }
    struct peer_link *peer = &solo->links[work->peer];
    if (work->generation == peer->generation) {
        char text[MSG_REASON_MAX];
        memcpy(text, peer->lost_text, sizeof text);
        peer_close(solo, work->peer);
        struct member_event event = drive_event(solo, MEMBER_LINK_DOWN);
        event.peer = work->peer;
        event.rc = work->rc;
        event.text = text;
        drive_feed(solo, &event);
    }
}

/* Whether the first piece of work may be done now: the saver reads what these two change. */
static bool may_work(struct solo *solo)
{
    enum work_kind kind = head(&solo->works)->kind;
    bool changes = kind == WORK_APPLY || kind == WORK_ADOPT;
    return !changes || !solo->has_saver || saver_hold(&solo->saver);
}

static void do_work(struct solo *solo)
{
    struct work work = *head(&solo->works);
    switch (work.kind) {
    case WORK_APPLY:
        do_apply(solo, &work);
        return;
    case WORK_ADOPT:
        do_adopt(solo, &work);
        return;
    case WORK_GIVE:
        if (attach_give(solo)) {
            pop(&solo->works);
        }
        return;
    case WORK_ENCODE:
        pop(&solo->works);
        do_encode(solo, &work);
        return;
    case WORK_REDUCE:
        pop(&solo->works);
        do_reduce(solo, &work);
        return;
    case WORK_MASTER_DOWN:
    case WORK_LINK_DOWN:
        return; /* news have a queue of their own */
    }
}

void work_finish(struct solo *solo)
{
    while (solo->applying && !solo->ended) {
        struct work work = *head(&solo->works);
        do_apply(solo, &work);
    }
}

static void on_turn(void *context)
{
    struct solo *solo = context;
    solo->work_queued = false;
    uint64_t end_us = clock_us() + WORK_SLICE_US;
    while (solo->news.count && !solo->ended) {
        struct work work = *head(&solo->news);
        pop(&solo->news);
        tell(solo, &work);
    }
    while (solo->works.count && !solo->ended && may_work(solo)) {
        do_work(solo);
        if (clock_us() >= end_us) {
            break;
        }
    }
    if (!solo->ended && (solo->news.count || (solo->works.count && may_work(solo)))) {
        wake(solo);
    }
}
