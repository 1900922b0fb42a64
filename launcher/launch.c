#include "launch.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "number.h"
#include "preflight.h"
#include "scheduler.h"

const char *launch_text(const struct launch *launch, enum flag_id id)
{
    return settings_text(&launch->settings, id);
}

const char *launch_doctor(const struct launch *launch)
{
    const char *url = launch->master_text ? launch->master_text : "tcp://HOST:PORT";
    return launch->node_rank < 0 ? text_format("solorun doctor --master_url %s", url)
                                 : text_format("solorun doctor --node_rank %d --master_url %s",
                                               launch->node_rank, url);
}

struct finding launch_begin(const struct args *args, struct launch *out)
{
    *out = (struct launch){.args = args, .node_rank = -1};
    struct finding finding = settings_gather(args, &out->settings);
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    const struct setting *of = out->settings.of;
    out->solo = of[FLAG_SOLO].value != NULL;
    out->verbose = of[FLAG_VERBOSE].value != NULL;
    out->insecure = of[FLAG_INSECURE].value != NULL;
    out->dry_run = args->value[FLAG_DRY_RUN] != NULL;
    out->fixed = settings_explicit(&out->settings, FLAG_NNODES);
    const char *color = launch_text(out, FLAG_COLOR), *format = launch_text(out, FLAG_LOG_FORMAT);
    if (strcmp(color, "auto") != 0 && strcmp(color, "always") != 0 && strcmp(color, "never") != 0) {
        return fail(CODE_VALUE, text_format("--color %s", color), NULL, "auto, always or never",
                    NULL);
    }
    if (strcmp(format, "text") != 0 && strcmp(format, "json") != 0) {
        return fail(CODE_VALUE, text_format("--log_format %s", format), NULL, "text or json", NULL);
    }
    message_style(color, format);
    return fine("settings");
}

/* ---- numbers and words -------------------------------------------------------------------- */

static struct finding bad_value(const struct launch *launch, enum flag_id id, const char *form)
{
    return fail(CODE_VALUE, text_format("--%s %s", flag_table[id].name, launch_text(launch, id)),
                text_format("from %s", settings_origin(&launch->settings, id)), form, NULL);
}

static struct finding step_nodes(struct launch *launch)
{
    uint64_t count;
    const struct setting *nnodes = &launch->settings.of[FLAG_NNODES];
    if (launch->fixed && strchr(nnodes->value, ':')) {
        return fail(CODE_TORCHRUN_FLAG,
                    text_format("%s %s together with --solo", nnodes->origin, nnodes->value),
                    "with --solo nodes come and go as they like unless --nnodes fixes the world",
                    "leave --nnodes out (see --min_nodes), or give one number", NULL);
    }
    if (launch->fixed) {
        if (!number_count(nnodes->value, 1, SOLO_MEMBERS_MAX, &count)) {
            return bad_value(launch, FLAG_NNODES,
                             text_format("a number from 1 to %u", SOLO_MEMBERS_MAX));
        }
        launch->nnodes = launch->expected = (int)count;
    } else if (launch->settings.expected.value) { /* N or MIN:MAX */
        const char *text = launch->settings.expected.value;
        const char *colon = strchr(text, ':');
        launch->expected =
            number_count(colon ? colon + 1 : text, 1, SOLO_MEMBERS_MAX, &count) ? (int)count : 0;
    }
    if (!number_count(launch_text(launch, FLAG_MIN_NODES), 1, SOLO_MEMBERS_MAX, &count)) {
        return bad_value(launch, FLAG_MIN_NODES,
                         text_format("a number from 1 to %u", SOLO_MEMBERS_MAX));
    }
    launch->min_nodes = (int)count;
    if (launch->fixed && launch->min_nodes > launch->nnodes) {
        return fail(CODE_CONTRADICTION,
                    text_format("--min_nodes %d of --nnodes %d", launch->min_nodes, launch->nnodes),
                    "so many nodes will never be there", NULL, NULL);
    }
    return launch->fixed ? fine("a fixed world of %d nodes", launch->nnodes)
                         : fine("elastic, from %d node%s on", launch->min_nodes,
                                launch->min_nodes == 1 ? "" : "s");
}

static struct finding step_times(struct launch *launch)
{
    if (!number_ms(launch_text(launch, FLAG_TIMEOUT), &launch->timeout_ms)) {
        return bad_value(launch, FLAG_TIMEOUT, "90, 90s, 5m or 1h");
    }
    if (!number_ms(launch_text(launch, FLAG_LEASE), &launch->lease_ms)) {
        return bad_value(launch, FLAG_LEASE, "10, 10s or 500ms");
    }
    return fine("timeout %g s, lease %g s", launch->timeout_ms / 1e3, launch->lease_ms / 1e3);
}

static bool one_of(const char *text, const char *const *words)
{
    for (; *words; words++) {
        if (strcmp(*words, text) == 0) {
            return true;
        }
    }
    return false;
}

static struct finding step_sync(struct launch *launch)
{
    static const char *const codecs[] = {"fp32", "bf16", "int8", "int4", NULL};
    const char *interval = launch_text(launch, FLAG_SYNC_INTERVAL), *why;
    char rule[SOLO_NAME_MAX];
    const char *outer = launch_text(launch, FLAG_OUTER), *codec = launch_text(launch, FLAG_CODEC);
    if (!number_schedule(interval, &why)) {
        return fail(CODE_INTERVAL, text_format("--sync_interval %s", interval), why,
                    "a number of optimizer steps as in 100, or a schedule as in 0:1,500:16", NULL);
    }
    if (strcmp(outer, "auto") != 0 && solo_outer_text(outer, rule, sizeof rule) < 0) {
        return fail(CODE_VALUE, text_format("--outer %s", outer), text_copy(solo_error_text()),
                    "auto, avg, slowmo or nesterov; the last two with :lr=..,beta=..,ramp=..",
                    NULL);
    }
    if (!one_of(codec, codecs)) {
        return bad_value(launch, FLAG_CODEC, "fp32, bf16, int8 or int4");
    }
    uint64_t streams;
    if (launch->settings.of[FLAG_STREAMS].value &&
        !number_count(launch_text(launch, FLAG_STREAMS), 1, 64, &streams)) {
        return bad_value(launch, FLAG_STREAMS, "a number from 1 to 64");
    }
    const char *memory = launch->settings.of[FLAG_MEMORY].value;
    if (memory && !number_bytes(memory, &launch->memory_bytes)) {
        return fail(CODE_MEMORY, text_format("--memory %s", memory), NULL, "a size: 16GiB, 900MiB",
                    NULL);
    }
    const char *log_size = launch_text(launch, FLAG_LOG_SIZE);
    if (strcmp(log_size, "none") != 0 && !number_bytes(log_size, &launch->log_bytes)) {
        return bad_value(launch, FLAG_LOG_SIZE, "a size: 256MiB, or none");
    }
    return fine("every %s steps, outer %s, codec %s", interval, outer, codec);
}

/* ---- who and where ------------------------------------------------------------------------ */

static struct finding step_job(struct launch *launch)
{
    const char *given = launch->settings.of[FLAG_JOB_ID].value;
    const char *script = launch->args->script ? launch->args->script : "default";
    const char *base = strrchr(script, '/') ? strrchr(script, '/') + 1 : script;
    size_t count = strlen(base);
    if (!given && count > 3 && strcmp(base + count - 3, ".py") == 0) {
        count -= 3;
    }
    char *name = given ? text_copy(given) : text_copy_count(base, count);
    for (char *at = name; *at; at++) {
        bool plain = isalnum((unsigned char)*at) || (strchr("._-", *at) && at != name);
        if (!plain && given) {
            return fail(CODE_VALUE, text_format("--job_id %s", given),
                        "it names a directory and goes to the other nodes",
                        "letters, digits, '.', '_' and '-', a letter or digit first", NULL);
        }
        *at = plain ? *at : '_';
    }
    if (!*name || strlen(name) >= SOLO_NAME_MAX || strcmp(name, "latest") == 0) {
        return fail(CODE_VALUE, text_format("--job_id %s", name),
                    text_format("from 1 to %u letters, and not \"latest\"", SOLO_NAME_MAX - 1),
                    NULL, NULL);
    }
    launch->job_id = name;
    return fine("%s", name);
}

static struct finding step_master_url(struct launch *launch)
{
    const char *text = launch->settings.of[FLAG_MASTER_URL].value, *why;
    if (!text) {
        text = "tcp://127.0.0.1";
        if (launch->expected > 1) {
            return fail(CODE_MASTER_URL,
                        text_format("no --master_url, but %d nodes are expected", launch->expected),
                        "on the loopback address no other machine reaches the master",
                        "--master_url tcp://HOST:29400 with an address of node 0, the same on "
                        "every node",
                        NULL);
        }
        if (settings_explicit(&launch->settings, FLAG_NODE_RANK) &&
            strcmp(launch_text(launch, FLAG_NODE_RANK), "0") != 0) {
            return fail(
                CODE_MASTER_URL,
                text_format("no --master_url on node %s", launch_text(launch, FLAG_NODE_RANK)),
                "a node other than 0 must know where the master is",
                "--master_url tcp://HOST:29400 with an address of node 0, the same on "
                "every node",
                NULL);
        }
    }
    if (!machine_url_parse(text, &launch->master, &why)) {
        return fail(CODE_MASTER_URL, text_format("--master_url %s", text), why,
                    "tcp://HOST:PORT, e.g. tcp://10.0.0.1:29400 or tcp://[fd00::1]:29400", NULL);
    }
    launch->master_text = machine_url_text(launch->master.host, launch->master.port);
    if (!launch_resolve_master(launch, &why)) {
        if (!launch->args->command) {
            return fine("%s: %s, for now", launch->master_text, why); /* the wait will tell */
        }
        return warn(CODE_UNREACHABLE, text_format("%s: %s", launch->master_text, why), NULL, NULL);
    }
    if (launch->master_loopback && launch->expected > 1 &&
        launch->settings.expected.source == SOURCE_SCHEDULER) {
        return fail(CODE_LOOPBACK,
                    text_format("%s is loopback, but %s expects %d nodes", launch->master_text,
                                launch->settings.expected.origin, launch->expected),
                    "every node would train alone",
                    "--master_url with an address of node 0 that the others can reach", NULL);
    }
    bool by_number = strcmp(machine_numeric(&launch->master_address), launch->master.host) == 0;
    if (launch->master_loopback && !by_number && strcmp(launch->master.host, "localhost") != 0) {
        return warn(CODE_LOOPBACK,
                    text_format("%s is %s here: no other machine will reach it",
                                launch->master.host, machine_numeric(&launch->master_address)),
                    "/etc/hosts gives this machine's own name a loopback address (Debian does)",
                    "--master_url with this machine's address in numbers");
    }
    return fine("%s, own address %s (%s)", launch->master_text,
                launch->own_address ? launch->own_address : "unknown",
                launch->interface ? launch->interface : "no interface");
}

bool launch_resolve_master(struct launch *launch, const char **why)
{
    struct address address = {0};
    if (!machine_resolve(&launch->master, &address, why)) {
        return false;
    }
    launch->own_address = machine_route_source(&address);
    if (!launch->own_address) {
        *why = "there is no route to it";
        return false;
    }
    launch->master_address = address;
    launch->master_loopback = machine_is_loopback(&address);
    launch->interface = machine_interface(launch->own_address);
    return true;
}

static struct finding step_node_rank(struct launch *launch)
{
    const struct setting *setting = &launch->settings.of[FLAG_NODE_RANK];
    uint64_t rank = 0;
    if (!setting->value) {
        if (launch->args->command && !launch->master_loopback) {
            return fine("not given");
        }
        if (!launch->master_loopback) {
            return fail(CODE_NODE_RANK, "--node_rank is missing",
                        "it is this node's identity, and no scheduler gave one",
                        "--node_rank 0 on the node that runs the master, 1, 2, ... on the others",
                        NULL);
        }
        launch->node_rank = 0;
        return fine("0, the master being on loopback");
    }
    int limit = launch->nnodes ? launch->nnodes : INT_MAX;
    if (!number_count(setting->value, 0, (uint64_t)limit - 1, &rank)) {
        const char *form = launch->nnodes ? text_format("a number from 0 to %d (--nnodes %d)",
                                                        launch->nnodes - 1, launch->nnodes)
                                          : "a number from 0";
        return fail(CODE_NODE_RANK, text_format("node_rank %s", setting->value),
                    text_format("from %s", setting->origin), form, NULL);
    }
    launch->node_rank = (int)rank;
    message_node(launch->node_rank);
    return fine("%d (%s)", launch->node_rank, setting->origin);
}

static struct finding step_devices(struct launch *launch)
{
    struct device_request request = {
        .count = launch->settings.of[FLAG_DEVICE_COUNT].value,
        .count_explicit = settings_explicit(&launch->settings, FLAG_DEVICE_COUNT),
        .gpus = launch->settings.of[FLAG_GPUS].value,
        .device = launch->settings.of[FLAG_DEVICE].value,
        .visible = getenv("CUDA_VISIBLE_DEVICES"),
        .gpu_count = device_gpus(),
        .core_count = device_cores(),
    };
    const struct setting *asked = &launch->settings.of[FLAG_DEVICE_COUNT];
    if (!launch->solo && (asked->source == SOURCE_PET || asked->source == SOURCE_SCHEDULER)) {
        request.count = NULL; /* torchrun reads its variables itself */
    }
    launch->gpus = request.gpu_count;
    launch->cores = request.core_count;
    const char *processes = args_torchrun_value(launch->args, "nproc_per_node");
    if (processes) {
        const char *count = launch->args->value[FLAG_DEVICE_COUNT];
        if (count && strcmp(count, processes) != 0) {
            return fail(CODE_CONTRADICTION,
                        text_format("--device_count %s and --nproc-per-node %s", count, processes),
                        "they mean the same: the ranks of this node", "keep one of them", NULL);
        }
        uint64_t number; /* xpu and what torchrun may learn are its own without --solo */
        bool ours = launch->solo || number_count(processes, 1, UINT32_MAX, &number);
        request.count = ours ? processes : NULL;
        request.count_explicit = true;
    }
    return device_choose(&request, &launch->device);
}

static struct finding step_python(struct launch *launch)
{
    return python_find(&launch->python);
}

static struct finding step_torch(struct launch *launch)
{
    return launch->python.path ? python_find_torch(&launch->python) : fine("no Python");
}

static struct finding step_fit(struct launch *launch)
{
    return python_check_fit(&launch->python);
}

static struct finding step_scheduler(struct launch *launch)
{
    (void)launch;
    return scheduler_check();
}

const struct step launch_steps[] = {
    {"script", preflight_script, false, false},
    {"torchrun flags", preflight_torchrun_flags, false, false},
    {"scheduler", step_scheduler, true, false},
    {"nodes", step_nodes, true, true},
    {"times", step_times, true, true},
    {"sync", step_sync, true, true},
    {"job", step_job, true, true},
    {"devices", step_devices, false, false},
    {"memory", preflight_memory, true, false},
    {"master_url", step_master_url, true, true},
    {"node_rank", step_node_rank, true, false},
    {"worker_url", preflight_worker_url, true, false},
    {"token", preflight_token, true, true},
    {"python", step_python, false, false},
    {"torch", step_torch, false, false},
    {"solo for this torch", step_fit, true, false},
    {"log_dir", preflight_log_dir, false, true},
    {"state_dir", preflight_state_dir, true, false},
    {"shared memory", preflight_shared_memory, true, false},
    {"open files", preflight_open_files, true, false},
    {NULL, NULL, false, false},
};
