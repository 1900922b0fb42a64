/* What takes time is done here, a slice per turn of the loop, so that heartbeats and frames
 * pass in between; and what an action finishes at once comes back as an event from here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/engine.h"

#define WORK_SLICE_US     1000u /* of one turn */
#define EXCHANGE_SLICE_US 20u   /* the same of chunks for others, who have some for us meanwhile */

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
    int rc = push(work->kind >= WORK_OWN ? &solo->news : &solo->works, work);
    if (rc < 0) {
        engine_fail(solo, rc);
        return;
    }
    wake(solo);
}

void work_again(struct solo *solo)
{
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
    if (solo->has_saver && solo->works.count == 0) {
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

/* Nothing is written any more to where the next anchor is made, nor read from there. */
static void release_next(struct solo *solo)
{
    peer_release_all(solo, &solo->job.next_theta);
    peer_release_all(solo, &solo->job.next_integers);
    peer_release_all(solo, &solo->job.next_momentum);
    solo->fetching = false;
}

void work_drop_round(struct solo *solo)
{
    log_line(SOLO_LOG_DEBUG, "solo: round dropped");
    forget_round_work(solo);
    peer_release_all(solo, &solo->job.inbox);
    peer_release_all(solo, &solo->job.mean);
    release_next(solo);
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
    if (solo->fetching) { /* given up before its end, and not needed any more */
        release_next(solo);
    }
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

void work_fetch(struct solo *solo, uint64_t version)
{
    if (solo->fetching && solo->fetch_version == version) {
        return;
    }
    release_next(solo);
    solo->fetching = true;
    solo->fetch_version = version;
}

/* ---- one piece of work ------------------------------------------------------------------- */

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

/* What was made in a link's memory and not sent from there is kept, if that is still there. */
static void settle(struct solo *solo, const struct peer_link *peer, uint32_t generation)
{
    if (peer && (peer->generation != generation || solo->ended)) {
        job_link_gone(&solo->job);
    }
    job_keep(&solo->job);
}

/* The link to a slot of the round; NULL: there is none. */
static struct peer_link *link_of(struct solo *solo, uint32_t slot)
{
    uint32_t index = solo->member.round.slot_peers[slot];
    return index != ROUND_SELF && solo->links[index].link ? &solo->links[index] : NULL;
}

/* Where the chunk may be made in the memory of the link to this slot. SOLO_EAGAIN: not now. */
static int room_of(struct peer_link *peer, uint32_t size, size_t spare, void **room_out)
{
    *room_out = NULL;
    int rc = peer ? link_room(peer->link, size, spare, room_out) : 0;
    return rc == SOLO_EAGAIN ? rc : 0;
}

/* false: the link has no room now. Half of it is for chunks of the mean, for which nothing can wait:
 * there are as many of these as the other side may have sent deltas. */
static bool do_encode(struct solo *solo, const struct work *work)
{
    struct peer_link *peer = link_of(solo, plan_owner(&solo->job.round.plan, work->chunk));
    uint32_t generation = peer ? peer->generation : 0;
    void *room;
    uint32_t size = job_chunk_bytes(&solo->job, work->chunk);
    if (room_of(peer, size, LINK_HALF_BYTES, &room) == SOLO_EAGAIN) {
        return false;
    }
    feed_done(solo, MEMBER_ENCODED, work, job_encode(&solo->job, work->chunk, room));
    settle(solo, peer, generation);
    return true;
}

/* What is not finite, of ours or in the sum, is told as a failed encoding, which it is. */
static void do_reduce(struct solo *solo, const struct work *work)
{
    const struct job_round *round = &solo->job.round;
    /* Of two members the other one alone is sent the mean: it is made where it goes. */
    struct peer_link *peer = round->plan.members == 2 ? link_of(solo, 1 - round->slot) : NULL;
    uint32_t generation = peer ? peer->generation : 0;
    void *room = NULL;
    (void)room_of(peer, job_chunk_bytes(&solo->job, work->chunk), 0, &room);
    int rc = job_reduce(&solo->job, work->chunk, room);
    feed_done(solo, rc < 0 ? MEMBER_ENCODED : MEMBER_REDUCED, work, rc);
    settle(solo, peer, generation);
}

bool work_reduce_now(struct solo *solo, uint32_t chunk)
{
    struct works *works = &solo->works;
    for (uint32_t i = works->count; i-- > 0 && !solo->ended;) {
        struct work work = works->at[(works->first + i) % works->capacity];
        if (work.kind == WORK_REDUCE && work.chunk == chunk) {
            for (; i > 0; i--) { /* those before it move up */
                works->at[(works->first + i) % works->capacity] =
                    works->at[(works->first + i - 1) % works->capacity];
            }
            pop(works);
            do_reduce(solo, &work);
            return true;
        }
    }
    return false;
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

static void begin_adopt(struct solo *solo)
{
    solo->adopting = true;
    release_next(solo);
    note_change(solo);
}

/* One block. */
static void do_adopt(struct solo *solo, const struct work *work)
{
    if (!solo->adopting) {
        begin_adopt(solo);
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
    if (work->kind == WORK_OWN) {
        feed_done(solo, MEMBER_ENCODED, work, 0);
        return;
    }
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

/* false: it has to wait for a link, and went to the end of the queue. */
static bool do_work(struct solo *solo)
{
    struct work work = *head(&solo->works);
    switch (work.kind) {
    case WORK_APPLY:
        do_apply(solo, &work);
        return true;
    case WORK_ADOPT:
        do_adopt(solo, &work);
        return true;
    case WORK_GIVE:
        if (attach_give(solo)) {
            pop(&solo->works);
        }
        return true;
    case WORK_ENCODE:
        pop(&solo->works);
        if (do_encode(solo, &work)) {
            return true;
        }
        (void)push(&solo->works, &work); /* into a place that there is */
        return false;
    case WORK_REDUCE:
        pop(&solo->works);
        do_reduce(solo, &work);
        return true;
    case WORK_OWN:
    case WORK_MASTER_DOWN:
    case WORK_LINK_DOWN:
        break; /* news have a queue of their own */
    }
    return true;
}

void work_finish(struct solo *solo)
{
    while (solo->applying && !solo->ended) {
        struct work work = *head(&solo->works);
        do_apply(solo, &work);
    }
}

static bool is_exchange(const struct works *works)
{
    enum work_kind kind = works->count ? head(works)->kind : WORK_APPLY;
    return kind == WORK_ENCODE || kind == WORK_REDUCE;
}

static void on_turn(void *context)
{
    struct solo *solo = context;
    solo->work_queued = false;
    uint64_t end_us = clock_us() + (is_exchange(&solo->works) ? EXCHANGE_SLICE_US : WORK_SLICE_US);
    while (solo->news.count && !solo->ended) {
        struct work work = *head(&solo->news);
        pop(&solo->news);
        tell(solo, &work);
    }
    uint32_t blocked = 0; /* one after the other: all of them, when as many as there are */
    while (solo->works.count > blocked && !solo->ended && may_work(solo)) {
        blocked = do_work(solo) ? 0 : blocked + 1;
        if (clock_us() >= end_us) {
            break;
        }
    }
    bool more = solo->works.count > blocked && !solo->ended && may_work(solo);
    if (!solo->ended && (solo->news.count || more)) {
        wake(solo);
    }
}
