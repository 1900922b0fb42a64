#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "number.h"
#include "scheduler.h"

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL; /* an empty variable counts as unset */
}

void settings_offer(struct settings *settings, enum flag_id id, enum source source,
                    const char *origin, const char *value)
{
    struct setting *now = &settings->of[id];
    if (!now->value) {
        *now = (struct setting){text_copy(value), source, text_copy(origin)};
        return;
    }
    if (now->source <= SOURCE_PET && source <= SOURCE_PET && strcmp(now->value, value) != 0) {
        list_addf(&settings->warnings, "%s says %s, %s says %s: %s is used", now->origin,
                  now->value, origin, value, now->origin);
    }
}

static void offer_environment(struct settings *settings)
{
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        const char *name = flag_variable(id), *value = variable(name);
        if (value && !(flag_table[id].traits & FLAG_ACTION)) {
            settings_offer(settings, id, SOURCE_SOLO, name, value);
        }
    }
    const char *rank = variable("NODE_RANK"); /* what Ray Train and Lightning set */
    if (rank && !variable("SOLO_NODE_RANK")) {
        settings_offer(settings, FLAG_NODE_RANK, SOURCE_SOLO, "NODE_RANK", rank);
    }
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        const char *name = flag_table[id].pet, *value = name ? variable(name) : NULL;
        if (!value) {
            continue;
        }
        if (id == FLAG_MASTER_URL) { /* the address alone: the port is torchrun's */
            bool bare_v6 = strchr(value, ':') && value[0] != '[';
            value = text_format(bare_v6 ? "tcp://[%s]:29400" : "tcp://%s:29400", value);
            if (settings->of[id].value) {
                continue; /* its port cannot agree: no contradiction */
            }
        }
        settings_offer(settings, id, SOURCE_PET, name, value);
    }
    const char *nodes = variable("PET_NNODES");
    if (nodes) {
        settings->expected = (struct setting){nodes, SOURCE_PET, "PET_NNODES"};
    }
}

static struct finding check_switches(struct settings *settings)
{
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        struct setting *setting = &settings->of[id];
        bool on;
        if (flag_table[id].value || !setting->value) {
            continue;
        }
        if (!number_bool(setting->value, &on)) {
            return fail(CODE_VALUE, text_format("%s is \"%s\"", setting->origin, setting->value),
                        "a switch is 1 or 0, true or false", NULL, NULL);
        }
        setting->value = on ? "1" : NULL;
    }
    return fine("switches");
}

struct finding settings_gather(const struct args *args, struct settings *out)
{
    *out = (struct settings){0};
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        if (args->value[id]) {
            settings_offer(out, id, SOURCE_FLAG, text_format("--%s", flag_table[id].name),
                           args->value[id]);
        }
    }
    offer_environment(out);
    struct finding finding = config_offer(out);
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    scheduler_offer(out);
    return check_switches(out);
}

const char *settings_text(const struct settings *settings, enum flag_id id)
{
    return settings->of[id].value ? settings->of[id].value : flag_table[id].fallback;
}

bool settings_explicit(const struct settings *settings, enum flag_id id)
{
    return settings->of[id].value && settings->of[id].source <= SOURCE_FILE;
}

const char *settings_origin(const struct settings *settings, enum flag_id id)
{
    return settings->of[id].value ? settings->of[id].origin : "default";
}

void settings_print(const struct settings *settings)
{
    static const char *const sources[] = {"flag", "environment", "torchrun's environment",
                                          "file", "scheduler",   "default"};
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        const struct setting *setting = &settings->of[id];
        if (flag_table[id].traits & FLAG_ACTION) {
            continue;
        }
        if (!setting->value) {
            const char *fallback = flag_table[id].fallback;
            printf("# %s = %s  # default\n", flag_table[id].name, fallback ? fallback : "none");
        } else if (flag_table[id].value) {
            printf("%s = %s  # %s %s\n", flag_table[id].name, text_json(setting->value),
                   sources[setting->source], setting->origin);
        } else {
            printf("%s = true  # %s %s\n", flag_table[id].name, sources[setting->source],
                   setting->origin);
        }
    }
    if (settings->expected.value) {
        printf("# nodes expected: %s  # %s\n", settings->expected.value, settings->expected.origin);
    }
}
