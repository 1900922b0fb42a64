#include "node/saver.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "os/clock.h"
#include "os/futex.h"

static void call(struct saver *saver)
{
    atomic_fetch_add(&saver->calls, 1);
    futex_wake(&saver->calls, UINT32_MAX);
}

static bool going_on(void *context)
{
    struct saver *saver = context;
    lock_take(&saver->lock);
    bool on = !saver->asked || saver->abandoned >= SAVER_ABANDONS_MAX;
    lock_give(&saver->lock);
    return on;
}

static void end_reading(struct saver *saver, enum saver_phase next)
{
    lock_take(&saver->lock);
    saver->phase = next;
    bool asked = saver->asked;
    saver->asked = false;
    lock_give(&saver->lock);
    if (asked) {
        saver->free_again(saver->context);
    }
}

static void note(struct saver *saver, int rc, uint64_t version)
{
    if (rc < 0 && rc != saver->rc) {
        log_line(SOLO_LOG_WARN, "solo: the state of version %" PRIu64 " is not saved: %s", version,
                 err_text());
    }
    lock_take(&saver->lock);
    saver->rc = rc;
    saver->saved = rc < 0 ? saver->saved : version;
    saver->phase = SAVER_IDLE;
    lock_give(&saver->lock);
}

static void save(struct saver *saver, const struct state_version *version)
{
    struct store store;
    int rc = state_write(saver->job, version, saver->folder, saver->name, going_on, saver, &store);
    lock_take(&saver->lock);
    saver->abandoned = rc == SOLO_EABORTED ? saver->abandoned + 1 : 0;
    if (rc == SOLO_EABORTED) {
        saver->offered = true; /* unless an outer step makes it old: then that is offered */
    }
    lock_give(&saver->lock);
    end_reading(saver, rc < 0 ? SAVER_IDLE : SAVER_SYNCING);
    if (rc == SOLO_EABORTED) {
        return;
    }
    rc = rc < 0 ? rc : store_commit(&store);
    note(saver, rc, version->version);
}

static void run(void *context)
{
    struct saver *saver = context;
    for (;;) {
        uint32_t calls = atomic_load(&saver->calls);
        lock_take(&saver->lock);
        bool work = saver->offered && !saver->held;
        bool stop = saver->stop;
        struct state_version version = saver->version;
        if (work) {
            saver->offered = false;
            saver->phase = SAVER_READING;
        }
        lock_give(&saver->lock);
        if (work) {
            save(saver, &version);
        } else if (stop) {
            return;
        } else {
            (void)futex_wait(&saver->calls, calls, CLOCK_NEVER);
        }
    }
}

int saver_open(struct saver *saver, const struct job *job, const char *folder, const char *name,
               void (*free_again)(void *context), void *context)
{
    memset(saver, 0, sizeof *saver);
    lock_init(&saver->lock);
    saver->job = job;
    saver->free_again = free_again;
    saver->context = context;
    saver->held = saver->changed = true; /* until the first offer */
    snprintf(saver->folder, sizeof saver->folder, "%s", folder);
    snprintf(saver->name, sizeof saver->name, "%s", name);
    int rc = thread_start(&saver->thread, "solo-saver", run, saver);
    if (rc < 0) {
        lock_deinit(&saver->lock);
    }
    return rc;
}

bool saver_hold(struct saver *saver)
{
    lock_take(&saver->lock);
    bool free_now = saver->phase != SAVER_READING;
    saver->held = true; /* nothing begins to read any more */
    saver->asked = !free_now;
    lock_give(&saver->lock);
    return free_now;
}

void saver_change(struct saver *saver)
{
    lock_take(&saver->lock);
    saver->changed = true;
    saver->offered = false;
    lock_give(&saver->lock);
}

void saver_release(struct saver *saver)
{
    lock_take(&saver->lock);
    saver->held = saver->changed;
    saver->asked = false;
    lock_give(&saver->lock);
    call(saver);
}

void saver_offer(struct saver *saver, uint64_t version, uint64_t job_step, uint64_t digest)
{
    lock_take(&saver->lock);
    saver->version = (struct state_version){version, job_step, digest};
    saver->offered = saver->saved != version || version == 0;
    saver->held = saver->changed = false;
    lock_give(&saver->lock);
    call(saver);
}

void saver_close(struct saver *saver)
{
    lock_take(&saver->lock);
    saver->stop = true;
    lock_give(&saver->lock);
    saver_release(saver);
    thread_join(&saver->thread);
    lock_deinit(&saver->lock);
}
