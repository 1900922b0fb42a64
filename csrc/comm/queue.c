/* Collectives in the order given: on the caller's thread if nothing is before them, else on
 * the group's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/local.h"
#include "comm/mail.h"
#include "comm/op.h"
#include "comm/span.h"
#include "comm/window.h"
#include "os/clock.h"

struct job {
    struct job *next;
    uint64_t deadline_us;
    solo_done_fn done;
    solo_steps_fn steps; /* gives the operations; NULL: they are here */
    void *context;
    uint32_t count;
    struct solo_op ops[]; /* behind them: their parts */
};

#define LISTED_MAX 4u /* of what waits behind a call that did not end in time */

/* An error text with what else this rank has under way: who reads it sees what would have come. */
static void add_pending(struct solo_group *group, char text[SOLO_TEXT_MAX])
{
    size_t used = strlen(text);
    struct text more = {text + used, SOLO_TEXT_MAX - used};
    uint32_t count = 0;
    pthread_mutex_lock(&group->mutex);
    uint64_t sequence = atomic_load(&group->sequence);
    const struct job *last = group->ahead_last, *job = group->ahead ? group->ahead : group->first;
    for (; job && count < LISTED_MAX; job = job == last ? group->first : job->next) {
        char op[OP_TEXT_MAX] = "a sparse all_reduce";
        if (!job->steps) {
            struct op_header header = op_header_of(job->ops, sequence + count);
            op_text(&header, op);
        }
        text_add(&more, count++ ? ", " : "; behind it wait ");
        text_add(&more, op);
    }
    uint32_t waiting = group->queued + group->ahead_count;
    if (waiting > count) {
        text_add(&more, " and ");
        text_add_uint(&more, waiting - count);
        text_add(&more, " more");
    }
    pthread_mutex_unlock(&group->mutex);
    mail_list_pending(group->mail, LISTED_MAX, &more);
}

int group_execute(struct solo_group *group, const struct solo_op *op, uint64_t deadline_us)
{
    uint64_t sequence = atomic_load(&group->sequence);
    int rc = 0;
    if (group->world == 1) {
        local_run(op);
    } else if (group->net) {
        rc = mixed_run(group, op, sequence, deadline_us);
    } else {
        rc = window_run(&group->board, op, sequence, deadline_us, &group->abort);
    }
    atomic_store(&group->sequence, sequence + 1);
    if (rc == 0) {
        return 0;
    }
    char text[SOLO_TEXT_MAX];
    snprintf(text, sizeof text, "%s", err_text());
    if (rc == SOLO_ETIMEDOUT) {
        add_pending(group, text);
    }
    return group_break(group, rc, text);
}

static int execute_all(struct solo_group *group, const struct solo_op *ops, uint32_t count,
                       uint64_t deadline_us)
{
    TRY(group_usable(group));
    for (uint32_t i = 0; i < count; i++) {
        TRY(group_execute(group, &ops[i], deadline_us));
    }
    return 0;
}

static int check_all(struct solo_group *group, const struct solo_op *ops, uint32_t count)
{
    TRY(group_usable(group));
    for (uint32_t i = 0; i < count; i++) {
        TRY(op_check(&ops[i], group->rank, group->world));
    }
    return 0;
}

/* Steps that depend on what the ones before brought. */
static int execute_steps(struct solo_group *group, const struct job *job)
{
    const struct solo_op *ops;
    uint32_t count = 0;
    int rc;
    while ((rc = job->steps(job->context, &ops, &count)) == 0 && count > 0 &&
           (rc = check_all(group, ops, count)) == 0) {
        TRY(execute_all(group, ops, count, job->deadline_us));
    }
    if (rc < 0) {
        solo_group_abort(group, "a step of a collective could not be made");
        if (group->net) { /* no call of ours is under way that would tell the other hosts */
            net_enter(group->net);
            net_tell_fault(group->net, SOLO_EABORTED, group->abort.text);
            net_leave(group->net);
        }
    }
    return rc;
}

/* ---- the group's own thread ------------------------------------------------------------------ */

static struct job *take_first(struct solo_group *group)
{
    struct job *job = group->first;
    group->first = job->next;
    group->last = group->first ? group->last : NULL;
    group->queued--;
    return job;
}

/* With the mutex held: the next job once nobody is busy, or NULL when there is nothing. */
static struct job *next_job(struct solo_group *group, bool *begun_out)
{
    struct job *job = group->ahead;
    *begun_out = job != NULL;
    if (job) {
        group->ahead = job->next;
        group->ahead_last = group->ahead ? group->ahead_last : NULL;
        group->ahead_count--;
    }
    while (!job && (group->busy || (!group->first && !group->closing))) {
        pthread_cond_wait(&group->changed, &group->mutex);
    }
    if (!job && group->first) {
        job = take_first(group);
        group->busy = true;
    }
    return job;
}

/* Further ahead than the next only what is short: one that is long fills the line by itself, and
 * each needs memory between hosts. */
#define SHORT_BYTES (8u << 20)

static bool may_begin(const struct solo_group *group, const struct job *job,
                      const struct solo_op *now, uint32_t place)
{
    if (job->steps || job->count != 1 || job->ops[0].kind != SOLO_OP_ALLREDUCE ||
        op_touches(now, job->ops) || (place > 1 && op_bytes(job->ops) > SHORT_BYTES)) {
        return false;
    }
    for (const struct job *before = group->ahead; before; before = before->next) {
        if (op_touches(before->ops, job->ops)) {
            return false;
        }
    }
    return true;
}

const struct solo_op *group_look_ahead(void *context, const struct solo_op *now, uint32_t place)
{
    struct solo_group *group = context;
    pthread_mutex_lock(&group->mutex);
    struct job *job = group->looks_ahead && group->ahead_count + 1 == place ? group->first : NULL;
    if (job && may_begin(group, job, now, place)) {
        take_first(group)->next = NULL;
        if (group->ahead_last) {
            group->ahead_last->next = job;
        } else {
            group->ahead = job;
        }
        group->ahead_last = job;
        group->ahead_count++;
    } else {
        job = NULL;
    }
    pthread_mutex_unlock(&group->mutex);
    return job ? job->ops : NULL;
}

/* One posted call: `begun`: its operation was, ahead of its turn. */
static int execute_job(struct solo_group *group, struct job *job, bool begun)
{
    group->looks_ahead = !job->steps && job->count == 1;
    int rc = job->steps ? execute_steps(group, job)
                        : execute_all(group, job->ops, job->count, job->deadline_us);
    group->looks_ahead = false;
    return rc < 0 && begun ? span_forget(group->span, rc) : rc;
}

/* The group whose worker this thread is, while it calls somebody's `done`. Should that post calls it
 * may wait for one of them, so another thread then becomes the worker, and this is NULL again. */
static _Thread_local const struct solo_group *telling;

/* Whether this thread still is the worker. */
static bool tell(struct solo_group *group, struct job *job, int rc, const char *text)
{
    telling = group;
    job->done(job->context, rc, text, group->rank);
    free(job);
    bool still = telling;
    telling = NULL;
    return still;
}

static void work(void *context)
{
    struct solo_group *group = context;
    pthread_detach(pthread_self());
    pthread_mutex_lock(&group->mutex);
    bool begun, is_worker = true;
    for (struct job *job; is_worker && (job = next_job(group, &begun));) {
        pthread_mutex_unlock(&group->mutex);
        char text[SOLO_TEXT_MAX] = "";
        int rc = execute_job(group, job, begun);
        if (rc < 0) {
            snprintf(text, sizeof text, "%s", err_text());
        }
        pthread_mutex_lock(&group->mutex);
        group->busy = group->ahead;
        pthread_cond_broadcast(&group->changed);
        pthread_mutex_unlock(&group->mutex);
        is_worker = tell(group, job, rc, text);
        pthread_mutex_lock(&group->mutex);
    }
    pthread_mutex_unlock(&group->mutex);
    group_release(group);
}

static int need_worker(struct solo_group *group)
{
    if (group->has_worker && telling != group) {
        return 0;
    }
    group_hold(group);
    int rc = thread_start(&group->worker, "solo-group", work, group);
    if (rc < 0) {
        group_release(group);
        return rc;
    }
    group->has_worker = true;
    telling = telling == group ? NULL : telling;
    return 0;
}

static struct job *new_job(const struct solo_op *ops, uint32_t count)
{
    size_t parts = 0;
    for (uint32_t i = 0; i < count; i++) {
        parts += ops[i].in_count + ops[i].out_count;
    }
    size_t head = sizeof(struct job) + count * sizeof *ops;
    struct job *job = malloc(head + parts * sizeof(struct solo_part));
    if (!job) {
        err_set(SOLO_ENOMEM, "no memory for a posted collective of %zu tensors", parts);
        return NULL;
    }
    struct solo_part *at = (struct solo_part *)(void *)((uint8_t *)job + head);
    for (uint32_t i = 0; i < count; i++) {
        struct solo_op *op = &job->ops[i];
        *op = ops[i];
        if (op->in_count) {
            op->in = memcpy(at, ops[i].in, op->in_count * sizeof *at);
            at += op->in_count;
        }
        if (op->out_count) {
            op->out = memcpy(at, ops[i].out, op->out_count * sizeof *at);
            at += op->out_count;
        }
    }
    job->next = NULL;
    job->steps = NULL;
    job->count = count;
    return job;
}

static int enqueue(struct solo_group *group, struct job *job)
{
    pthread_mutex_lock(&group->mutex);
    int rc = group->queued < GROUP_QUEUED_MAX
                 ? need_worker(group)
                 : err_set(SOLO_ELIMIT, "%u collectives wait already: wait for some of them",
                           GROUP_QUEUED_MAX);
    if (rc == 0) {
        if (group->last) {
            group->last->next = job;
        } else {
            group->first = job;
        }
        group->last = job;
        group->queued++;
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->mutex);
    return rc;
}

int solo_group_post(struct solo_group *group, const struct solo_op *ops, uint32_t count,
                    uint32_t timeout_ms, solo_done_fn done, void *context)
{
    TRY(check_all(group, ops, count));
    struct job *job = new_job(ops, count);
    if (!job) {
        return SOLO_ENOMEM;
    }
    job->deadline_us = group_deadline(group, timeout_ms);
    job->done = done;
    job->context = context;
    int rc = enqueue(group, job);
    if (rc != 0) { /* else the queue has it */
        free(job);
    }
    return rc;
}

int solo_group_post_steps(struct solo_group *group, solo_steps_fn steps, uint32_t timeout_ms,
                          solo_done_fn done, void *context)
{
    TRY(group_usable(group));
    struct job *job = new_job(NULL, 0);
    if (!job) {
        return SOLO_ENOMEM;
    }
    job->deadline_us = group_deadline(group, timeout_ms);
    job->done = done;
    job->steps = steps;
    job->context = context;
    int rc = enqueue(group, job);
    if (rc != 0) { /* else the queue has it */
        free(job);
    }
    return rc;
}

void group_drop_jobs(struct solo_group *group, int rc, const char *text)
{
    pthread_mutex_lock(&group->mutex);
    struct job *job = group->first;
    group->first = group->last = NULL;
    group->queued = 0;
    pthread_mutex_unlock(&group->mutex);
    while (job) {
        struct job *next = job->next;
        job->done(job->context, rc, text, group->rank);
        free(job);
        job = next;
    }
}

/* ---- inline ------------------------------------------------------------------------------------
 */

static void set_latch(void *context, int rc, const char *text, uint32_t source)
{
    (void)source;
    latch_set(context, rc, text);
}

static int run_behind_others(struct solo_group *group, const struct solo_op *ops, uint32_t count,
                             uint32_t timeout_ms)
{
    struct latch latch;
    latch_init(&latch);
    int rc = solo_group_post(group, ops, count, timeout_ms, set_latch, &latch);
    if (rc == 0) {
        latch_wait(&latch, CLOCK_NEVER, &rc); /* the jobs themselves have deadlines */
    }
    latch_deinit(&latch);
    return rc;
}

int solo_group_run(struct solo_group *group, const struct solo_op *ops, uint32_t count,
                   uint32_t timeout_ms)
{
    TRY(check_all(group, ops, count));
    pthread_mutex_lock(&group->mutex);
    bool mine = !group->busy && !group->first;
    group->busy = mine || group->busy;
    pthread_mutex_unlock(&group->mutex);
    if (!mine) {
        return run_behind_others(group, ops, count, timeout_ms);
    }
    int rc = execute_all(group, ops, count, group_deadline(group, timeout_ms));
    pthread_mutex_lock(&group->mutex);
    group->busy = false;
    if (group->first || group->closing) {
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->mutex);
    return rc;
}
