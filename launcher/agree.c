#include "agree.h"

#include <string.h>

#include "number.h"

/* ---- versions --------------------------------------------------------------------------- */

char *agree_versions(const struct launch *launch)
{
    const char *torch = launch->python.torch;
    char *bare = torch ? text_copy_count(torch, strcspn(torch, "+")) : NULL;
    return bare ? text_format("solo=%s torch=%s", SOLO_VERSION, bare)
                : text_format("solo=%s", SOLO_VERSION);
}

/* The value of `name` in "torch=2.13.0+cpu python=3.11", without what follows a '+'. */
static char *version_of(const char *versions, const char *name)
{
    for (const char *at = versions; *at; at += strspn(at, " ")) {
        size_t count = strcspn(at, " ");
        if (strncmp(at, name, strlen(name)) == 0 && at[strlen(name)] == '=') {
            const char *value = at + strlen(name) + 1;
            return text_copy_count(value, strcspn(value, " +"));
        }
        at += count;
    }
    return NULL;
}

static struct finding check_versions(const struct launch *launch, const struct solo_status *status)
{
    const char *torch = launch->python.torch;
    char *ours = torch ? text_copy_count(torch, strcspn(torch, "+")) : NULL;
    char *theirs = version_of(status->versions, "torch");
    if (*status->solo_version && strcmp(status->solo_version, SOLO_VERSION) != 0) {
        return fail(
            CODE_VERSIONS,
            text_format("this node has solo %s, the master %s", SOLO_VERSION, status->solo_version),
            "the nodes of a job must merge in the same way",
            text_format("install solo %s from its source on this node", status->solo_version),
            NULL);
    }
    if (ours && theirs && strcmp(ours, theirs) != 0) {
        return fail(CODE_VERSIONS, text_format("this node has torch %s, the job %s", ours, theirs),
                    "different versions train differently",
                    text_format("pip install torch==%s", theirs), NULL);
    }
    return fine("versions agree");
}

/* ---- settings --------------------------------------------------------------------------- */

const char *agree_text(enum flag_id id, const char *text)
{
    char rule[SOLO_NAME_MAX];
    const char *why;
    if (id == FLAG_OUTER) {
        const char *resolved = strcmp(text, "auto") == 0 ? "avg" : text;
        return solo_outer_text(resolved, rule, sizeof rule) < 0 ? text : text_copy(rule);
    }
    return id == FLAG_SYNC_INTERVAL && number_schedule(text, &why) ? number_schedule_text(text)
                                                                   : text;
}

/* Node 0 started the master and told it, unless `solorun master` was run by hand. */
static const char *whose(const struct solo_status *status)
{
    if (status->settings_rank != UINT32_MAX) {
        for (uint32_t i = 0; i < status->listed && i < SOLO_MEMBERS_MAX; i++) {
            if (status->members[i].node_rank == status->settings_rank) {
                return text_format("node %u (%s), which joined first", status->settings_rank,
                                   status->members[i].name);
            }
        }
        return text_format("node %u, which joined first", status->settings_rank);
    }
    return text_format("node 0 (its master on %s)", status->master_name);
}

static struct finding check_settings(const struct launch *launch, const struct solo_status *status)
{
    const struct {
        enum flag_id id;
        const char *theirs;
    } compared[] = {{FLAG_SYNC_INTERVAL, status->interval},
                    {FLAG_OUTER, status->outer},
                    {FLAG_CODEC, status->codec}};
    for (size_t i = 0; i < sizeof compared / sizeof *compared; i++) {
        const char *name = flag_table[compared[i].id].name, *theirs = compared[i].theirs;
        const char *ours = agree_text(compared[i].id, launch_text(launch, compared[i].id));
        if (*theirs && strcmp(ours, agree_text(compared[i].id, theirs)) != 0) {
            return fail(CODE_SETTINGS,
                        text_format("--%s is %s on node %d (%s) and %s on %s", name, ours,
                                    launch->node_rank, machine_name(), theirs, whose(status)),
                        "the nodes of a job merge at the same steps and in the same way",
                        text_format("--%s %s on every node", name, theirs),
                        "solorun --print_config shows where each value comes from");
        }
    }
    return fine("settings agree");
}

struct finding agree_check(const struct launch *launch, const struct solo_status *status)
{
    struct finding finding = check_versions(launch, status);
    return finding.level == LEVEL_FAIL ? finding : check_settings(launch, status);
}
