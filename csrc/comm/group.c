#include "comm/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "comm/mail.h"
#include "os/clock.h"
#include "os/host.h"

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

static bool forked(const struct solo_group *group)
{
    return group->forks != atomic_load_explicit(&forks, memory_order_relaxed);
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
    board_close(&group->board);
    if (group->listen_fd >= 0) {
        close(group->listen_fd);
    }
    pthread_mutex_destroy(&group->mutex);
    pthread_cond_destroy(&group->changed);
    free(group->locals);
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

int group_usable(struct solo_group *group)
{
    if (forked(group)) {
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

uint64_t solo_group_sequence(const struct solo_group *group)
{
    return atomic_load(&group->sequence);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void hex_of(const uint8_t *bytes, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++) {
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    }
}

static bool hex_read(const char *text, uint8_t *out, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) {
            return false;
        }
        out[i] = (uint8_t)value;
    }
    return true;
}

static int write_card(struct solo_group *group, char card_out[SOLO_CARD_MAX])
{
    struct card card = {.addresses = "-"};
    TRY(card_host_id(card.host_id));
    uint8_t name[16];
    TRY(host_random(name, sizeof name));
    TRY(host_random(group->secret, sizeof group->secret));
    memcpy(group->meeting, "solo-", 5);
    hex_of(name, sizeof name, group->meeting + 5);
    hex_of(group->secret, sizeof group->secret, card.secret);
    TRY(shm_listen(group->meeting, &group->listen_fd));
    snprintf(card.host, sizeof card.host, "%s", group->host);
    snprintf(card.meeting, sizeof card.meeting, "%s", group->meeting);
    return card_write(&card, card_out);
}

static int check_config(const struct solo_group_config *config)
{
    if (config->size < sizeof *config) {
        return err_set(SOLO_EVERSION, "solo_group_config is of another version of solo");
    }
    if (config->world == 0 || config->world > SOLO_WORLD_MAX || config->rank >= config->world) {
        return err_set(SOLO_EINVAL, "rank %u of %u: a group has 1 to %u ranks", config->rank,
                       config->world, SOLO_WORLD_MAX);
    }
    return 0;
}

int solo_group_prepare(const struct solo_group_config *config, struct solo_group **out,
                       char card_out[SOLO_CARD_MAX])
{
    pthread_once(&watch_forks, start_watching_forks);
    TRY(check_config(config));
    struct solo_group *group = calloc(1, sizeof *group);
    if (!group) {
        return err_set(SOLO_ENOMEM, "no memory for a group");
    }
    group->rank = config->rank;
    group->world = config->world;
    group->listen_fd = -1;
    group->forks = atomic_load(&forks);
    atomic_store(&group->references, 1);
    snprintf(group->name, sizeof group->name, "%s", config->name ? config->name : "group");
    char host[BOARD_HOST_MAX - 24];
    host_name(host, sizeof host);
    snprintf(group->host, sizeof group->host, "%s:%" PRIu64, host, host_pid());
    solo_group_set_timeout(group, config->timeout_ms);
    pthread_mutex_init(&group->mutex, NULL);
    pthread_cond_init(&group->changed, NULL);
    int rc = mail_new(group, &group->mail);
    if (rc == 0) {
        rc = write_card(group, card_out);
    }
    if (rc < 0) {
        group_release(group);
        return rc;
    }
    *out = group;
    return 0;
}

/* Sorts out who is on this host; *mine is this rank's place among them. */
static int find_locals(struct solo_group *group, const char *const *cards, char meeting[64],
                       uint32_t *mine)
{
    struct card own, card;
    TRY(card_read(cards[group->rank], &own));
    group->locals = calloc(group->world, sizeof *group->locals);
    if (!group->locals) {
        return err_set(SOLO_ENOMEM, "no memory for a group of %u", group->world);
    }
    for (uint32_t i = 0; i < group->world; i++) {
        if (card_read(cards[i], &card) < 0) {
            return err_set(SOLO_EVERSION, "rank %u runs another version of solo", i);
        }
        if (i == 0 && !hex_read(card.secret, group->secret, sizeof group->secret)) {
            return err_set(SOLO_EVERSION, "rank 0 runs another version of solo");
        }
        if (strcmp(card.host_id, own.host_id) == 0) {
            if (group->local_count == 0) {
                snprintf(meeting, 64, "%s", card.meeting);
            }
            *mine = i == group->rank ? group->local_count : *mine;
            group->locals[group->local_count++] = i;
        }
    }
    return 0;
}

static int join_board(struct solo_group *group, const char *const *cards, uint64_t deadline_us)
{
    char meeting[64] = "";
    uint32_t mine = 0;
    TRY(find_locals(group, cards, meeting, &mine));
    if (group->local_count != group->world) {
        return err_set(SOLO_ENOTSUP, "group \"%s\" spans hosts", group->name);
    }
    if (group->local_count == 1) {
        return 0;
    }
    struct board_config config = {.rank = mine,
                                  .ranks = group->local_count,
                                  .global = group->locals,
                                  .meeting = meeting,
                                  .listen_fd = mine == 0 ? group->listen_fd : -1,
                                  .secret = group->secret,
                                  .host = group->host,
                                  .deadline_us = deadline_us};
    return board_open(&config, &group->board);
}

int solo_group_connect(struct solo_group *group, const char *const *cards, uint32_t timeout_ms)
{
    if (group->connected || forked(group)) {
        return err_set(SOLO_EINVAL, "group \"%s\" is connected already, or of another process",
                       group->name);
    }
    uint64_t deadline_us = group_deadline(group, timeout_ms);
    int rc = join_board(group, cards, deadline_us);
    if (group->listen_fd >= 0) {
        close(group->listen_fd);
        group->listen_fd = -1;
    }
    if (rc < 0) {
        return group_break(group, rc, err_text());
    }
    group->connected = true;
    struct solo_op meet = {.kind = SOLO_OP_BARRIER, .dtype = SOLO_BYTES};
    return group_execute(group, &meet, deadline_us);
}

/* ---- ending ---------------------------------------------------------------------------------- */

void solo_group_abort(struct solo_group *group, const char *why)
{
    if (forked(group)) {
        return;
    }
    char text[SOLO_TEXT_MAX];
    snprintf(text, sizeof text, "rank %u (%s) aborted the group%s%s", group->rank, group->host,
             why && why[0] ? ": " : "", why ? why : "");
    group_break(group, SOLO_EABORTED, text);
    if (group->board.fault) {
        board_break(&group->board, SOLO_EABORTED, text);
    }
    atomic_store(&group->aborted, 1);
}

int solo_group_shutdown(struct solo_group *group, uint32_t timeout_ms)
{
    if (forked(group)) {
        return 0;
    }
    uint64_t deadline_us = group_deadline(group, timeout_ms);
    struct timespec nap;
    pthread_mutex_lock(&group->mutex);
    while ((group->busy || group->first) && clock_us() < deadline_us) {
        clock_gettime(CLOCK_REALTIME, &nap);
        nap.tv_sec += 1;
        pthread_cond_timedwait(&group->changed, &group->mutex, &nap);
    }
    bool left = group->busy || group->first;
    pthread_mutex_unlock(&group->mutex);
    while (!mail_idle(group->mail, true) && clock_us() < deadline_us) {
        clock_sleep_until(clock_us() + 200);
    }
    left = left || !mail_idle(group->mail, true);
    return left ? err_set(SOLO_ETIMEDOUT, "collectives of group \"%s\" are still going on",
                          group->name)
                : 0;
}

void solo_group_close(struct solo_group *group)
{
    if (!group || forked(group)) {
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
    mail_hang_up(group->mail, SOLO_EABORTED, "the group was closed before this was done");
    group_release(group);
}

void solo_group_stats(struct solo_group *group, struct solo_group_figures *out)
{
    *out = (struct solo_group_figures){.size = sizeof *out,
                                       .shared_bytes = group->board.shm.size,
                                       .staging_bytes = mail_kept_bytes(group->mail),
                                       .local_ranks = group->local_count,
                                       .hosts = 1};
}
