#include "reach.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agree.h"

enum {
    PROBE_MS = 900,        /* one attempt; the first answer comes within a second */
    PAUSE_MS = 250,        /* between attempts */
    LINE_EVERY_MS = 10000, /* between two lines of a wait */
    SAME_HOST_MS = 2000,   /* for the ranks of a killed node to go, before it may restart */
    SILENT_MS = 3000,      /* a holder of our rank that is silent so long may be dead */
    CLOSED_MAX = 3,        /* a master that dies closes in the middle too: asked so often */
};

uint64_t reach_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void pause_ms(unsigned ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

/* ---- one answer ------------------------------------------------------------------------- */

static bool same_host(const struct launch *launch, const struct solo_status_member *member)
{
    return strcmp(member->name, machine_name()) == 0 ||
           (launch->own_address && strstr(member->address, launch->own_address));
}

/* The live member that has our node_rank, NULL if it is free. */
static const struct solo_status_member *holder(const struct launch *launch,
                                               const struct solo_status *status)
{
    for (uint32_t i = 0; i < status->listed && i < SOLO_MEMBERS_MAX; i++) {
        if (status->members[i].live && (int)status->members[i].node_rank == launch->node_rank) {
            return &status->members[i];
        }
    }
    return NULL;
}

struct finding reach_judge(const struct launch *launch, const struct solo_status *status)
{
    if (status->over) {
        return fail(
            CODE_OVER, text_format("job %s at %s is over", status->job_id, launch->master_text),
            "the nodes that founded it have finished", "start it again, node 0 first", NULL);
    }
    struct finding finding = agree_check(launch, status);
    const struct solo_status_member *other = holder(launch, status);
    if (finding.level == LEVEL_FAIL || !other) {
        return finding;
    }
    return fail(
        CODE_RANK_HELD,
        text_format("node_rank %d is held by a live node at %s (%s)", launch->node_rank,
                    other->address, other->name),
        text_format("it was last heard %llu ms ago", (unsigned long long)other->last_seen_ms),
        "give this node a --node_rank of its own, or stop the other one",
        text_format("solorun status %s", launch->master_text));
}

struct finding reach_clock(const struct launch *launch, const struct solo_status *status,
                           struct finding reached)
{
    enum { TOLD_US = 1000000 };
    int64_t ahead_us = status->ahead_us, limit_us = TOLD_US + (int64_t)status->rtt_us;
    if (reached.level != LEVEL_OK || (ahead_us <= limit_us && ahead_us >= -limit_us)) {
        return reached;
    }
    return warn(CODE_CLOCK,
                text_format("the clock of this machine is %.1f s %s that of the master (%s)",
                            (ahead_us < 0 ? -1 : 1) * (double)ahead_us / 1e6,
                            ahead_us < 0 ? "before" : "behind", status->master_name),
                text_format("the times in the logs of node %d and in events.jsonl do not fit "
                            "together; merging needs no clock",
                            launch->node_rank),
                "set both clocks by NTP: timedatectl set-ntp true");
}

/* Whose job it is, by asking without saying for which. */
static const char *other_job(const struct launch *launch)
{
    struct solo_status status = {.size = sizeof status};
    int rc = solo_status_get(launch->master_text, NULL, launch->token, PROBE_MS / 2, &status);
    return rc == 0 ? text_copy(status.job_id) : "of another name";
}

/* Who at another's port answers wrongly, is refused for good; who does not answer may yet. */
static struct finding refused(const struct launch *launch, const struct solo_status *status,
                              const char *text)
{
    const char *url = launch->master_text, *next = launch_doctor(launch);
    switch (status->reach) {
    case SOLO_BAD_TOKEN:
        return fail(CODE_TOKEN_WRONG,
                    text_format(launch->token ? "the master at %s refuses the token"
                                              : "the master at %s asks for a token; none was given",
                                url),
                    text, "the same --token_file on every node", next);
    case SOLO_OTHER_WIRE:
        return fail(CODE_WIRE,
                    text_format("the master at %s speaks protocol %u, this node %u", url,
                                status->wire_version, SOLO_WIRE_VERSION),
                    text, "install the same version of solo on every node", next);
    case SOLO_OTHER_JOB:
        return fail(CODE_OTHER_JOB,
                    text_format("the port at %s belongs to job %s, not to %s", url,
                                other_job(launch), launch->job_id),
                    NULL, "another port in --master_url, or the same --job_id on every node",
                    text_format("solorun status %s", url));
    case SOLO_NOT_SOLO:
        return fail(CODE_NOT_SOLO, text_format("what listens at %s is not a solo master", url),
                    text, "check host and port of --master_url", next);
    case SOLO_REACHED:
    case SOLO_NO_NAME:
    case SOLO_CONN_REFUSED:
    case SOLO_NO_ANSWER:
    case SOLO_NO_ROUTE:
        break;
    }
    return fine("not yet");
}

static const char *in_words(enum solo_reach reach, const char *text)
{
    switch (reach) {
    case SOLO_NO_NAME:
        return text_format("the name is not found: %s", text);
    case SOLO_CONN_REFUSED:
        return "connection refused: nothing listens there yet";
    case SOLO_NO_ANSWER:
        return "no answer: the host is down, or a firewall drops the packets";
    case SOLO_NO_ROUTE:
        return text_format("no route: %s", text);
    case SOLO_REACHED:
    case SOLO_NOT_SOLO:
    case SOLO_BAD_TOKEN:
    case SOLO_OTHER_WIRE:
    case SOLO_OTHER_JOB:
        break;
    }
    return text;
}

struct finding reach_once(struct launch *launch, uint32_t timeout_ms, struct solo_status *status,
                          bool joins)
{
    const char *why;
    *status = (struct solo_status){.size = sizeof *status, .reach = SOLO_NO_NAME};
    if (!launch->master_address.size && !launch_resolve_master(launch, &why)) {
        return warn(CODE_UNREACHABLE, "not found", in_words(SOLO_NO_NAME, why), NULL);
    }
    int rc =
        solo_status_get(launch->master_text, launch->job_id, launch->token, timeout_ms, status);
    if (rc == 0) {
        return joins ? reach_judge(launch, status)
                     : fine("job %s, %u members, %.1f ms away", status->job_id,
                            status->member_count, status->rtt_us / 1e3);
    }
    const char *text = text_copy(solo_error_text());
    struct finding finding = refused(launch, status, text);
    return finding.level == LEVEL_FAIL
               ? finding
               : warn(CODE_UNREACHABLE, "not reached", in_words(status->reach, text), NULL);
}

/* ---- waiting ---------------------------------------------------------------------------- */

struct wait {
    const char *for_what;
    uint64_t begun_ms, next_line_ms, deadline_ms;
};

static struct wait wait_begin(const struct launch *launch, const char *for_what)
{
    uint64_t now = reach_now_ms();
    return (struct wait){for_what, now, now, now + launch->timeout_ms};
}

static void wait_say(struct wait *wait, const struct launch *launch, const char *why)
{
    uint64_t now = reach_now_ms();
    if (now < wait->next_line_ms) {
        return;
    }
    wait->next_line_ms = now + LINE_EVERY_MS;
    message_note("node %d: waiting for %s at %s, %.0f s of %.0f s", launch->node_rank,
                 wait->for_what, launch->master_text, (double)(now - wait->begun_ms) / 1e3,
                 launch->timeout_ms / 1e3);
    message_more("%s: never answered: %s", launch->node_rank == 0 ? "solorun master" : "node 0",
                 why);
}

/* A holder that may be the rest of this very node's former life gets a moment to go. */
static bool may_go_away(const struct launch *launch, const struct solo_status *status,
                        uint64_t waited_ms)
{
    const struct solo_status_member *other = holder(launch, status);
    if (!other) {
        return false;
    }
    if (other->last_seen_ms > SILENT_MS) {
        return waited_ms < launch->lease_ms;
    }
    return same_host(launch, other) && waited_ms < SAME_HOST_MS;
}

static struct finding given_up(const struct launch *launch, const char *why)
{
    return fail(CODE_UNREACHABLE,
                text_format("node %d (%s, %s) cannot reach the master at %s", launch->node_rank,
                            launch->own_address ? launch->own_address : machine_name(),
                            launch->interface ? launch->interface : "no interface",
                            launch->master_text),
                text_format("%s; tried for %g s", why, launch->timeout_ms / 1e3),
                text_format("start node 0 (or solorun master) there; open TCP %u on %s",
                            launch->master.port, launch->master.host),
                launch_doctor(launch));
}

static struct finding reach(struct launch *launch, bool runs)
{
    struct wait wait = wait_begin(launch, "the master");
    int closed = 0;
    for (;;) {
        struct solo_status status;
        uint64_t asked = reach_now_ms();
        struct finding finding = reach_once(launch, PROBE_MS, &status, true);
        uint64_t now = reach_now_ms();
        if (finding.level == LEVEL_OK) {
            return reach_clock(launch, &status,
                               fine("job %s, %u members, %.1f ms away", status.job_id,
                                    status.member_count, status.rtt_us / 1e3));
        }
        bool patient =
            finding.code == CODE_RANK_HELD && may_go_away(launch, &status, now - wait.begun_ms);
        patient |= finding.code == CODE_NOT_SOLO && now - asked < PAUSE_MS && ++closed < CLOSED_MAX;
        if (finding.level == LEVEL_FAIL && !patient) {
            return finding;
        }
        if (runs && status.reach == SOLO_CONN_REFUSED) {
            return finding;
        }
        if (now >= wait.deadline_ms) {
            return given_up(launch, finding.why);
        }
        if (!patient) {
            wait_say(&wait, launch, finding.why);
        }
        if (status.reach == SOLO_NO_ANSWER) {
            launch->master_address.size = 0; /* the name may have moved: resolve it again */
        }
        pause_ms(PAUSE_MS);
    }
}

struct finding reach_master(struct launch *launch)
{
    return reach(launch, false);
}

struct finding reach_running_master(struct launch *launch)
{
    return reach(launch, true);
}

struct finding reach_name(struct launch *launch)
{
    struct wait wait = wait_begin(launch, "the name of the master");
    const char *why = "";
    while (!launch->master_address.size && !launch_resolve_master(launch, &why)) {
        if (reach_now_ms() >= wait.deadline_ms) {
            return given_up(launch, in_words(SOLO_NO_NAME, why));
        }
        wait_say(&wait, launch, in_words(SOLO_NO_NAME, why));
        pause_ms(PAUSE_MS);
    }
    return fine("%s", machine_numeric(&launch->master_address));
}
