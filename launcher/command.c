#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void set(struct command *command, const char *name, const char *value)
{
    if (value) {
        list_addf(&command->set, "%s=%s", name, value);
    } else if (getenv(name)) {
        list_add(&command->unset, name);
    }
}

static void set_if_unset(struct command *command, const char *name, const char *value)
{
    const char *now = getenv(name);
    if (value && (!now || !*now)) {
        set(command, name, value);
    }
}

static char *number(unsigned long long value)
{
    return text_format("%llu", value);
}

/* ---- what torchrun is given ------------------------------------------------------------- */

static void add_elastic(const struct launch *launch, struct list *argv)
{
    list_add(argv, "--standalone");
    list_add(argv, "--local-addr=127.0.0.1");
    list_addf(argv, "--nproc-per-node=%d", launch->device.count);
}

/* The master keeps its port; torchrun's store takes the next one, the same on every node. */
static unsigned rendezvous_port(const struct launch *launch)
{
    return launch->master.port < UINT16_MAX ? launch->master.port + 1u : launch->master.port - 1u;
}

static void add_fixed(const struct launch *launch, struct list *argv)
{
    const char *address = launch->master_address.size ? machine_numeric(&launch->master_address)
                                                      : launch->master.host;
    list_addf(argv, "--nnodes=%d", launch->nnodes);
    list_addf(argv, "--node-rank=%d", launch->node_rank);
    list_addf(argv, "--master-addr=%s", address);
    list_addf(argv, "--master-port=%u", rendezvous_port(launch));
    if (launch->own_address) {
        list_addf(argv, "--local-addr=%s", launch->own_address);
    }
    list_addf(argv, "--rdzv-conf=timeout=%u", (launch->timeout_ms + 999) / 1000);
    list_addf(argv, "--nproc-per-node=%d", launch->device.count);
}

/* The user's own, so that leaving out --solo gives the same job as plain DDP. */
static void add_plain(const struct launch *launch, struct list *argv)
{
    static const struct {
        enum flag_id id;
        const char *torchrun;
    } same[] = {{FLAG_NNODES, "nnodes"}, {FLAG_NODE_RANK, "node-rank"}, {FLAG_LOG_DIR, "log-dir"}};
    const struct settings *settings = &launch->settings;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (settings_explicit(settings, same[i].id) &&
            settings->of[same[i].id].source != SOURCE_PET) {
            list_addf(argv, "--%s=%s", same[i].torchrun, settings->of[same[i].id].value);
        }
    }
    const char *url = settings->of[FLAG_MASTER_URL].value, *why;
    struct solo_url master;
    if (url && settings_explicit(settings, FLAG_MASTER_URL) &&
        settings->of[FLAG_MASTER_URL].source != SOURCE_PET &&
        machine_url_parse(url, &master, &why)) {
        list_addf(argv, "--master-addr=%s", master.host);
        list_addf(argv, "--master-port=%u", master.port);
    }
    bool counted = settings_explicit(settings, FLAG_DEVICE_COUNT) &&
                   settings->of[FLAG_DEVICE_COUNT].source != SOURCE_PET;
    bool chosen = launch->device.visible && launch->device.count > 1;
    if ((counted || chosen) && !args_torchrun_value(launch->args, "nproc_per_node")) {
        list_addf(argv, "--nproc-per-node=%d", launch->device.count);
    }
}

static void add_own_words(const struct launch *launch, struct list *argv)
{
    const struct args *args = launch->args;
    for (int i = 0; i < args->torchrun_count; i++) {
        const char *name = torchrun_table[args->torchrun[i].flag].name;
        if (launch->solo &&
            (strcmp(name, "nproc_per_node") == 0 || strcmp(name, "standalone") == 0)) {
            continue; /* said already */
        }
        for (int j = 0; j < 2 && args->torchrun[i].words[j]; j++) {
            list_add(argv, args->torchrun[i].words[j]);
        }
    }
}

static void add_script(const struct args *args, struct list *argv)
{
    bool dashes = args->script[0] == '-';
    for (size_t i = 0; i < args->script_args.count; i++) {
        dashes |= strncmp(args->script_args.items[i], "--", 2) == 0;
    }
    if (dashes) { /* else its parser drops a "--" of the script's, and refuses --n as ambiguous */
        list_add(argv, "--");
    }
    list_add(argv, args->script);
    for (size_t i = 0; i < args->script_args.count; i++) {
        list_add(argv, args->script_args.items[i]);
    }
}

/* ---- what the ranks find in their environment --------------------------------------------- */

static void set_job(const struct launch *launch, struct command *out)
{
    const struct setting *of = launch->settings.of;
    set(out, "SOLO_ENABLE", "1");
    set(out, "SOLO_MASTER_URL", launch->master_text);
    set(out, "SOLO_WORKER_URL", of[FLAG_WORKER_URL].value);
    set(out, "SOLO_NODE_RANK", number((unsigned)launch->node_rank));
    set(out, "SOLO_DEVICE_COUNT", number((unsigned)launch->device.count));
    set(out, "SOLO_NNODES", launch->fixed ? number((unsigned)launch->nnodes) : NULL);
    set(out, "SOLO_TIMEOUT", text_format("%g", launch->timeout_ms / 1e3));
    set(out, "SOLO_LEASE", text_format("%g", launch->lease_ms / 1e3));
    set(out, "SOLO_MIN_NODES", number((unsigned)launch->min_nodes));
    set(out, "SOLO_SYNC_INTERVAL", launch_text(launch, FLAG_SYNC_INTERVAL));
    set(out, "SOLO_OUTER", launch_text(launch, FLAG_OUTER));
    set(out, "SOLO_CODEC", launch_text(launch, FLAG_CODEC));
    set(out, "SOLO_JOB_ID", launch->job_id);
    set(out, "SOLO_LOG_DIR", launch->log_dir);
    set(out, "SOLO_JOB_DIR", launch->job_dir);
    set(out, "SOLO_STATE_DIR", launch->state_dir);
    set(out, "SOLO_TOKEN_FILE", launch->token_file);
    set(out, "SOLO_INSECURE", of[FLAG_INSECURE].value);
    set(out, "SOLO_LINGER", of[FLAG_LINGER].value);
    set(out, "SOLO_NO_SYNC_AT_EPOCH_END", of[FLAG_NO_SYNC_AT_EPOCH_END].value);
    set(out, "SOLO_MASTER_SEEN", launch->master_seen ? "1" : NULL);
    set(out, "SOLO_VERBOSE", of[FLAG_VERBOSE].value);
    set(out, "SOLO_STREAMS", of[FLAG_STREAMS].value);
    set(out, "SOLO_MEMORY", launch->memory_bytes ? number(launch->memory_bytes) : NULL);
    set(out, "SOLO_LOG_SIZE", launch->log_bytes ? number(launch->log_bytes) : NULL);
    set(out, "SOLO_DEVICE", launch->device.device);
    set(out, "SOLO_COLOR", of[FLAG_COLOR].value);
    set(out, "SOLO_LOG_FORMAT", of[FLAG_LOG_FORMAT].value);
}

/* What a scheduler set for a torchrun that meets the other nodes by itself. */
static void unset_torchruns(struct command *out)
{
    static const char *const names[] = {
        "PET_NNODES",      "PET_NPROC_PER_NODE", "PET_NODE_RANK",     "PET_MASTER_ADDR",
        "PET_MASTER_PORT", "PET_RDZV_BACKEND",   "PET_RDZV_ENDPOINT", "PET_RDZV_ID",
        "PET_RDZV_CONF",   "PET_STANDALONE",     "PET_LOG_DIR",       "PET_LOCAL_ADDR",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        set(out, names[i], NULL);
    }
}

static void set_threads_and_interfaces(const struct launch *launch, struct command *out)
{
    int ranks = launch->device.count;
    const char *given = args_torchrun_value(launch->args, "nproc_per_node");
    if (launch->solo || ranks > 1 || given) {
        int threads = launch->cores / ranks > 0 ? launch->cores / ranks : 1;
        set_if_unset(out, "OMP_NUM_THREADS", number((unsigned)threads));
    }
    if (!launch->solo) {
        return;
    }
    const char *interface = launch->fixed ? launch->interface : machine_interface("127.0.0.1");
    set_if_unset(out, "GLOO_SOCKET_IFNAME", interface);
    set_if_unset(out, "NCCL_SOCKET_IFNAME", interface);
}

void command_build(const struct launch *launch, struct command *out)
{
    *out = (struct command){0};
    struct list *argv = &out->argv;
    list_add(argv, launch->python.path);
    if (launch->device.visible) {
        set(out, "CUDA_VISIBLE_DEVICES", launch->device.visible);
    }
    set_threads_and_interfaces(launch, out);
    if (launch->solo) {
        list_add(argv, "-P"); /* a random.py in the working directory is the script's business */
        list_add(argv, "-m");
        list_add(argv, "solo.run");
        (launch->fixed ? add_fixed : add_elastic)(launch, argv);
        if (!args_torchrun_value(launch->args, "logs_specs")) {
            list_add(argv, "--logs-specs=solo");
        }
        list_addf(argv, "--log-dir=%s", launch->node_dir ? launch->node_dir : launch->log_dir);
        set_job(launch, out);
        unset_torchruns(out);
    } else {
        list_add(argv, "-m");
        list_add(argv, "torch.distributed.run");
        add_plain(launch, argv);
    }
    add_own_words(launch, argv);
    add_script(launch->args, argv);
}

void command_print(const struct command *command)
{
    fputs("env", stdout);
    for (size_t i = 0; i < command->unset.count; i++) {
        printf(" -u %s", command->unset.items[i]);
    }
    for (size_t i = 0; i < command->set.count; i++) {
        printf(" %s", text_shell(command->set.items[i]));
    }
    for (size_t i = 0; i < command->argv.count; i++) {
        printf(" %s", text_shell(command->argv.items[i]));
    }
    putchar('\n');
}

struct finding command_exec(const struct launch *launch, const struct command *command)
{
    for (size_t i = 0; i < command->unset.count; i++) {
        unsetenv(command->unset.items[i]);
    }
    for (size_t i = 0; i < command->set.count; i++) {
        putenv(command->set.items[i]); /* lives on: nothing is freed before the exec */
    }
    if (launch->solo) {
        setenv("SOLO_AGENT_PID", number((unsigned long long)getpid()), 1); /* exec keeps it */
    }
    fflush(NULL);
    execv(command->argv.items[0], command->argv.items);
    return fail(CODE_EXEC,
                text_format("cannot execute %s: %s", command->argv.items[0], strerror(errno)), NULL,
                NULL, NULL);
}
