#include "comm/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "comm/mail.h"
#include "comm/span.h"
#include "os/clock.h"

/* ---- fork: a child has the memory of a group, but neither its threads nor its peers ---------- */

static _Atomic uint32_t forks;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_fetch_add(&forks, 1);
}

static void start_watching_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

uint32_t group_fork_count(void)
{
    pthread_once(&watch_forks, start_watching_forks);
    return atomic_load(&forks);
}

bool group_forked(const struct solo_group *group)
{
    return group->fork_count != atomic_load_explicit(&forks, memory_order_relaxed);
}

/* ---- references and faults ------------------------------------------------------------------- */

void group_hold(struct solo_group *group)
{
    atomic_fetch_add(&group->references, 1);
}

void group_release(struct solo_group *group)
{
    if (atomic_fetch_sub(&group->references, 1) != 1) {
        return;
    }
    mail_free(group->mail);
    span_free(group->span);
    net_close(group->net);
    board_close(&group->board);
    if (group->meeting_fd >= 0) {
        close(group->meeting_fd);
    }
    if (group->listen_fd >= 0) {
        close(group->listen_fd);
    }
    pthread_mutex_destroy(&group->mutex);
    pthread_cond_destroy(&group->changed);
    free(group->locals);
    free(group->everyone);
    free(group->across);
    free(group->places);
    free(group->hosts_of);
    free(group->sums);
    free(group);
}

int group_break(struct solo_group *group, int rc, const char *text)
{
    pthread_mutex_lock(&group->mutex);
    if (!group->fault_rc) {
        group->fault_rc = rc;
        snprintf(group->fault_text, sizeof group->fault_text, "%s", text);
    }
    rc = err_set(group->fault_rc, "%s", group->fault_text);
    pthread_mutex_unlock(&group->mutex);
    return rc;
}

int group_tell(struct solo_group *group, int rc)
{
    char text[SOLO_TEXT_MAX];
    snprintf(text, sizeof text, "%s", err_text());
    if (group->board.fault) {
        board_break(&group->board, rc, text);
    }
    net_enter(group->net);
    net_tell_fault(group->net, rc, text);
    net_leave(group->net);
    return err_set(rc, "%s", text);
}

int group_listen(struct solo_group *group)
{
    int rc = group->net ? net_listen(group->net) : 0;
    if (rc == 0) {
        return 0;
    }
    group_tell(group, rc);
    char text[SOLO_TEXT_MAX];
    snprintf(text, sizeof text, "%s", err_text());
    return group_break(group, rc, text);
}

int group_usable(struct solo_group *group)
{
    if (group_forked(group)) {
        return err_set(SOLO_ENOTSUP,
                       "group \"%s\" was opened before this process was forked: "
                       "a child must open its own (or be started by spawn)",
                       group->name);
    }
    pthread_mutex_lock(&group->mutex);
    int rc = group->fault_rc;
    if (rc < 0) {
        err_set(rc, "%s", group->fault_text);
    }
    pthread_mutex_unlock(&group->mutex);
    if (rc == 0 && !group->connected) {
        rc = err_set(SOLO_EINVAL, "group \"%s\" is not connected yet", group->name);
    }
    return rc;
}

int solo_group_health(struct solo_group *group)
{
    TRY(group_usable(group));
    TRY(group_listen(group));
    return group->board.fault ? board_broken(&group->board) : 0;
}

uint64_t group_deadline(const struct solo_group *group, uint32_t timeout_ms)
{
    uint64_t ms = timeout_ms ? timeout_ms : atomic_load(&group->timeout_ms);
    return clock_us() + ms * 1000;
}

void solo_group_set_timeout(struct solo_group *group, uint32_t timeout_ms)
{
    atomic_store(&group->timeout_ms, timeout_ms ? timeout_ms : GROUP_TIMEOUT_MS);
}

/* ---- ending ---------------------------------------------------------------------------------- */

void solo_group_abort(struct solo_group *group, const char *why)
{
    if (group_forked(group)) {
        return;
    }
    pthread_mutex_lock(&group->mutex);
    bool first = !atomic_load(&group->abort.set);
    if (first) {
        snprintf(group->abort.text, sizeof group->abort.text, "rank %u (%s) aborted the group%s%s",
                 group->rank, group->card.host, why && why[0] ? ": " : "", why ? why : "");
        atomic_store(&group->abort.set, 1);
    }
    pthread_mutex_unlock(&group->mutex);
    if (!first) {
        return;
    }
    group_break(group, SOLO_EABORTED, group->abort.text);
    if (group->board.fault) {
        board_break(&group->board, SOLO_EABORTED, group->abort.text);
    }
    if (group->net) {
        net_wake(group->net);
    }
}

int solo_group_shutdown(struct solo_group *group, uint32_t timeout_ms)
{
    if (group_forked(group)) {
        return 0;
    }
    uint64_t deadline_us = group_deadline(group, timeout_ms);
    struct timespec nap;
    pthread_mutex_lock(&group->mutex);
    while ((group->busy || group->first) && clock_us() < deadline_us) {
        clock_gettime(CLOCK_MONOTONIC, &nap);
        nap.tv_sec += 1;
        pthread_cond_timedwait(&group->changed, &group->mutex, &nap);
    }
    bool left = group->busy || group->first;
    pthread_mutex_unlock(&group->mutex);
    while (!mail_idle(group->mail, true) && clock_us() < deadline_us) {
        clock_sleep_until(clock_us() + 200);
    }
    left = left || !mail_idle(group->mail, true);
    if (left) {
        return err_set(SOLO_ETIMEDOUT, "collectives of group \"%s\" are still going on",
                       group->name);
    }
    /* Else nobody would ever say it. Of other faults, such as a death, this rank needs to know no more. */
    int rc = group_usable(group) < 0 ? 0 : group_listen(group);
    return rc == SOLO_EMISMATCH ? rc : 0;
}

void solo_group_close(struct solo_group *group)
{
    if (!group || group_forked(group)) {
        return;
    }
    pthread_mutex_lock(&group->mutex);
    group->closing = true;
    bool unfinished = group->busy || group->first;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->mutex);
    if (unfinished) {
        solo_group_abort(group, "it was closed with work in flight");
        group_drop_jobs(group, SOLO_EABORTED, "the group was closed before this was begun");
    }
    if (group->net && atomic_load(&group->abort.set)) {
        net_enter(group->net);
        net_tell_fault(group->net, SOLO_EABORTED, group->abort.text);
        net_leave(group->net);
    }
    if (group->net && !unfinished && mail_idle(group->mail, false)) {
        net_enter(group->net);
        net_say_goodbye(group->net);
        net_leave(group->net);
    }
    mail_hang_up(group->mail, SOLO_EABORTED, "the group was closed before this was done");
    board_leave(&group->board); /* now, and not when the last thread lets go of the group: a process
                                   that ends before would have died */
    group_release(group);
}

void solo_group_stats(struct solo_group *group, struct solo_group_figures *out)
{
    *out = (struct solo_group_figures){.size = sizeof *out,
                                       .shared_bytes = group->board.shm.size,
                                       .staging_bytes = mail_kept_bytes(group->mail),
                                       .local_ranks = group->local_count,
                                       .hosts = group->hosts};
    if (group->net && !group_forked(group)) {
        out->staging_bytes += span_bytes(group->span);
        out->connections = net_connections(group->net);
    }
}
