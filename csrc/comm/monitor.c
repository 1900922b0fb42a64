/* monitored_barrier: everyone reports to rank 0, which says who did not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "comm/mail.h"
#include "os/clock.h"

struct wish { /* one message that is waited for */
    struct latch latch;
    uint8_t byte;
};

static void on_done(void *context, int rc, const char *text, uint32_t source)
{
    (void)source;
    latch_set(context, rc, text);
}

static int begin(struct solo_group *group, bool receive, uint32_t peer, uint64_t tag,
                 uint32_t timeout_ms, struct wish *wish)
{
    latch_init(&wish->latch);
    int rc = receive ? solo_group_receive(group, peer, tag, &wish->byte, 1, timeout_ms, on_done,
                                          &wish->latch)
                     : solo_group_send(group, peer, tag, &wish->byte, 1, timeout_ms, on_done,
                                       &wish->latch);
    if (rc < 0) {
        latch_set(&wish->latch, rc, err_text());
    }
    return rc;
}

static int end(struct wish *wish)
{
    int rc = 0;
    latch_wait(&wish->latch, CLOCK_NEVER, &rc); /* messages have deadlines */
    latch_deinit(&wish->latch);
    return rc;
}

static int exchange(struct solo_group *group, bool receive, uint32_t peer, uint64_t tag,
                    uint32_t timeout_ms)
{
    struct wish wish = {.byte = 1};
    begin(group, receive, peer, tag, timeout_ms, &wish);
    return end(&wish);
}

static int report(struct solo_group *group, uint64_t tag, uint32_t timeout_ms)
{
    int rc = exchange(group, false, 0, tag, timeout_ms);
    if (rc == 0) {
        rc = exchange(group, true, 0, tag, timeout_ms);
    }
    if (rc < 0) {
        char why[SOLO_TEXT_MAX];
        snprintf(why, sizeof why, "%s", err_text());
        return err_set(rc,
                       "Rank %u successfully reached monitoredBarrier, but received errors while "
                       "waiting for send/recv from rank 0: see its error (%s)",
                       group->rank, why);
    }
    return 0;
}

static int collect(struct solo_group *group, uint64_t tag, uint32_t timeout_ms, bool wait_all)
{
    struct wish *wishes = calloc(group->world, sizeof *wishes);
    if (!wishes) {
        return err_set(SOLO_ENOMEM, "no memory for a barrier");
    }
    for (uint32_t i = 1; i < group->world; i++) {
        begin(group, true, i, tag, timeout_ms, &wishes[i]);
    }
    char missing[256] = "";
    size_t used = 0;
    for (uint32_t i = 1; i < group->world; i++) {
        if (end(&wishes[i]) < 0 && used + 16 < sizeof missing && (wait_all || used == 0)) {
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%u",
                                     used ? ", " : "", i);
        }
    }
    free(wishes);
    if (used) {
        return err_set(SOLO_ETIMEDOUT, "Rank%s %s failed to pass monitoredBarrier in %u ms",
                       wait_all ? "s" : "", missing, timeout_ms);
    }
    for (uint32_t i = 1; i < group->world; i++) {
        TRY(exchange(group, false, i, tag, timeout_ms));
    }
    return 0;
}

int solo_group_monitored_barrier(struct solo_group *group, uint32_t timeout_ms, int wait_all)
{
    TRY(group_usable(group));
    TRY(group_listen(group));
    if (group->world == 1) {
        return 0;
    }
    /* A report that came too late for its barrier must not count for a later one. */
    uint64_t sequence = atomic_load(&group->sequence);
    group->barriers = sequence == group->barriers_at ? group->barriers + 1 : 0;
    group->barriers_at = sequence;
    uint64_t tag = MAIL_TAG_OWN | sequence << 16 | (group->barriers & 0xffff);
    timeout_ms = timeout_ms ? timeout_ms : atomic_load(&group->timeout_ms);
    return group->rank == 0 ? collect(group, tag, timeout_ms, wait_all)
                            : report(group, tag, timeout_ms);
}
