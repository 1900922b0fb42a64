#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reach.h"

enum { ASK_MS = 3000 };

/* ---- status ----------------------------------------------------------------------------- */

static char *seen(const struct solo_status_member *member)
{
    if (member->live) {
        return text_format("%.1f s ago", (double)member->last_seen_ms / 1e3);
    }
    return text_format("%.0f s ago: %s", (double)member->last_seen_ms / 1e3,
                       *member->left ? member->left : "unknown");
}

static void print_table(const char *url, const struct solo_status *status)
{
    printf("job %s at %s: version %" PRIu64 ", round %" PRIu64 ", %u member%s", status->job_id, url,
           status->version, status->round, status->member_count,
           status->member_count == 1 ? "" : "s");
    if (status->expected_nodes) {
        printf(" of %u expected", status->expected_nodes);
    }
    printf("%s\nmaster pid %" PRIu64 " on %s, solo %s, %.1f ms away\n\n",
           status->over ? ", over" : "", status->master_pid, status->master_name,
           status->solo_version, status->rtt_us / 1e3);
    printf("%4s %4s  %-24s %5s %8s  %-12s %s\n", "node", "slot", "address", "ranks", "version",
           "state", "last heard");
    for (uint32_t i = 0; i < status->listed && i < SOLO_MEMBERS_MAX; i++) {
        const struct solo_status_member *member = &status->members[i];
        char slot[12] = "-";
        if (member->live) {
            snprintf(slot, sizeof slot, "%u", member->slot);
        }
        printf("%4u %4s  %-24s %5u %8" PRIu64 "  %-12s %s\n", member->node_rank, slot,
               member->address, member->device_count, member->version,
               member->live ? member->state : "gone", seen(member));
    }
}

static void print_json(const char *url, const struct solo_status *status)
{
    printf("{\"schema\":1,\"url\":%s,\"job_id\":%s,\"solo\":%s,\"wire\":%u,\"versions\":%s,",
           text_json(url), text_json(status->job_id), text_json(status->solo_version),
           status->wire_version, text_json(status->versions));
    printf("\"master\":{\"name\":%s,\"pid\":%" PRIu64 "},\"rtt_us\":%u,",
           text_json(status->master_name), status->master_pid, status->rtt_us);
    printf("\"epoch\":%" PRIu64 ",\"round\":%" PRIu64 ",\"version\":%" PRIu64
           ",\"min_nodes\":%u,\"expected_nodes\":%u,\"member_count\":%u,\"over\":%s,\"members\":[",
           status->epoch, status->round, status->version, status->min_nodes, status->expected_nodes,
           status->member_count, status->over ? "true" : "false");
    for (uint32_t i = 0; i < status->listed && i < SOLO_MEMBERS_MAX; i++) {
        const struct solo_status_member *member = &status->members[i];
        printf(
            "%s{\"node_rank\":%u,\"slot\":%u,\"device_count\":%u,\"live\":%s,\"version\":%" PRIu64
            ",\"last_seen_ms\":%" PRIu64 ",\"name\":%s,\"address\":%s,\"state\":%s,\"left\":%s}",
            i ? "," : "", member->node_rank, member->slot, member->device_count,
            member->live ? "true" : "false", member->version, member->last_seen_ms,
            text_json(member->name), text_json(member->address), text_json(member->state),
            text_json(member->left));
    }
    puts("]}");
}

static struct finding read_token(struct launch *launch)
{
    const char *secret = getenv("SOLO_TOKEN");
    for (const struct step *step = launch_steps; step->name; step++) {
        if (strcmp(step->name, "token") == 0 && launch->settings.of[FLAG_TOKEN_FILE].value) {
            return step->take(launch);
        }
    }
    launch->token = secret && *secret ? secret : NULL;
    return fine("token");
}

struct finding report_status(struct launch *launch, const char *url, bool json)
{
    struct solo_status status;
    const char *why;
    url = url ? url : launch_text(launch, FLAG_MASTER_URL);
    url = strcmp(url, "loopback") == 0 ? "tcp://127.0.0.1" : url;
    if (!machine_url_parse(url, &launch->master, &why)) {
        return fail(CODE_MASTER_URL, text_format("%s", url), why, "solorun status tcp://HOST:PORT",
                    NULL);
    }
    launch->master_text = machine_url_text(launch->master.host, launch->master.port);
    launch->job_id = launch->settings.of[FLAG_JOB_ID].value; /* NULL: whichever is there */
    struct finding finding = read_token(launch);
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    finding = reach_once(launch, ASK_MS, &status, false);
    if (finding.level != LEVEL_OK) {
        finding.what = finding.level == LEVEL_FAIL
                           ? finding.what
                           : text_format("no answer from a master at %s", launch->master_text);
        finding.fix = finding.fix ? finding.fix
                                  : "check host and port; node 0 of a job, or `solorun master`, "
                                    "is what answers there";
        finding.level = LEVEL_FAIL;
        return finding;
    }
    (json ? print_json : print_table)(launch->master_text, &status);
    return finding;
}

/* ---- doctor ----------------------------------------------------------------------------- */

static void print_line(const char *name, const struct finding *finding, bool json, bool first)
{
    static const char *const words[] = {"ok", "warn", "FAIL"};
    if (json) {
        printf("%s\n{\"check\":%s,\"result\":\"%s\",\"text\":%s", first ? "" : ",", text_json(name),
               finding->level == LEVEL_FAIL ? "fail" : words[finding->level],
               text_json(finding->what));
        if (finding->code) {
            printf(",\"code\":\"SOLO-E%03d\"", (int)finding->code);
        }
        if (finding->fix) {
            printf(",\"fix\":%s", text_json(finding->fix));
        }
        putchar('}');
        return;
    }
    printf("%-4s  %-20s %s\n", words[finding->level], name, finding->what);
    if (finding->level != LEVEL_OK && finding->why) {
        printf("%27swhy: %s\n", "", finding->why);
    }
    if (finding->level != LEVEL_OK && finding->fix) {
        printf("%27sfix: %s\n", "", finding->fix);
    }
}

/* A node 0 whose master is not there yet is well; so is the port if it can be had. */
static struct finding look_at_master(struct launch *launch)
{
    struct solo_status status;
    if (!launch->master_text) {
        return fine("not asked");
    }
    if (!launch->args->script && !launch->settings.of[FLAG_JOB_ID].value) {
        launch->job_id = NULL; /* no job was named: whichever is there */
    }
    struct finding finding = reach_once(launch, ASK_MS, &status, launch->node_rank >= 0);
    if (status.reach == SOLO_REACHED) {
        return reach_clock(launch, &status, finding);
    }
    if (finding.level == LEVEL_WARN && launch->node_rank == 0 && launch->master_address.size &&
        machine_is_local(&launch->master_address)) {
        int fd = machine_listen(&launch->master_address, false);
        if (fd >= 0) {
            machine_close(fd);
            return fine("port %u is free; node 0 would start it", launch->master.port);
        }
    }
    if (finding.level == LEVEL_WARN) {
        finding.what = text_format("no master answers at %s", launch->master_text);
    }
    return finding;
}

int report_doctor(struct launch *launch, bool json)
{
    int status = 0;
    bool first = true;
    launch->solo = true;
    if (json) {
        printf("{\"schema\":1,\"host\":%s,\"checks\":[", text_json(machine_name()));
    }
    for (const struct step *step = launch_steps;; step++) {
        struct finding finding = step->name ? step->take(launch) : look_at_master(launch);
        print_line(step->name ? step->name : "master", &finding, json, first);
        first = false;
        if (finding.level == LEVEL_FAIL && !status) {
            status = message_status(finding.code);
        }
        if (!step->name) {
            break;
        }
    }
    if (json) {
        puts("]}");
    }
    return status;
}
