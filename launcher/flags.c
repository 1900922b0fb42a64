#include "flags.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

#include "text.h"

#define L GROUP_LAUNCH
#define N GROUP_NETWORK
#define S GROUP_SYNC
#define O GROUP_OUTPUT
#define ROW(id, name, value, fallback, group, traits, variable, pet, help)                         \
    [id] = {name, value, fallback, group, traits, variable, pet, help}

const struct flag flag_table[FLAG_COUNT] = {
    ROW(FLAG_SOLO, "solo", NULL, "off", L, FLAG_FIRST, "SOLO_ENABLE", NULL,
        "interval sync between nodes; without it: plain torchrun"),
    ROW(FLAG_DEVICE_COUNT, "device_count", "N", "visible GPUs, else 1", L, FLAG_FIRST | FLAG_PLAIN,
        NULL, "PET_NPROC_PER_NODE", "ranks on this node; also auto, cpu, gpu"),
    ROW(FLAG_GPUS, "gpus", "LIST", "all visible", L, FLAG_FIRST | FLAG_PLAIN, NULL, NULL,
        "GPUs of this node: 0,2 or UUIDs, or none"),
    ROW(FLAG_DEVICE, "device", "DEVICE", "cuda if there is one", L, 0, NULL, NULL,
        "default device of the ranks: cpu, cuda, cuda:N"),
    ROW(FLAG_MEMORY, "memory", "SIZE", NULL, L, FLAG_SYNC, NULL, NULL,
        "what each rank may use: 16GiB; checked before training, on a GPU also kept to"),
    ROW(FLAG_NNODES, "nnodes", "N", "elastic", L, FLAG_FIRST | FLAG_PLAIN, NULL, NULL,
        "a fixed world of N nodes; unset: nodes come and go"),
    ROW(FLAG_MIN_NODES, "min_nodes", "N", "1", L, FLAG_SYNC, NULL, NULL,
        "nodes that must be there to start and to go on"),
    ROW(FLAG_TIMEOUT, "timeout", "T", "300", L, FLAG_FIRST | FLAG_SYNC, NULL, NULL,
        "deadline of start-up waits: 90, 90s, 5m"),
    ROW(FLAG_MASTER_URL, "master_url", "URL", "loopback", N, FLAG_FIRST | FLAG_PLAIN, NULL,
        "PET_MASTER_ADDR", "tcp://HOST:PORT of the master; node 0 starts it"),
    ROW(FLAG_WORKER_URL, "worker_url", "URL", "by the route to the master", N,
        FLAG_FIRST | FLAG_SYNC, NULL, NULL, "where other nodes reach this one"),
    ROW(FLAG_NODE_RANK, "node_rank", "K", "scheduler; 0 on loopback", N, FLAG_FIRST | FLAG_PLAIN,
        NULL, "PET_NODE_RANK", "identity of this node, from 0"),
    ROW(FLAG_JOB_ID, "job_id", "NAME", "the script's name", N, FLAG_SYNC, NULL, NULL,
        "name of the job; the same on every node"),
    ROW(FLAG_TOKEN_FILE, "token_file", "FILE", NULL, N, FLAG_FIRST | FLAG_SYNC, NULL, NULL,
        "file with the shared secret (or the secret in SOLO_TOKEN)"),
    ROW(FLAG_INSECURE, "insecure", NULL, "off", N, FLAG_SYNC, NULL, NULL,
        "other machines without a token"),
    ROW(FLAG_LEASE, "lease", "T", "10", N, FLAG_SYNC, NULL, NULL,
        "silence after which a node is dropped"),
    ROW(FLAG_STREAMS, "streams", "N", "chosen", N, FLAG_SYNC, NULL, NULL,
        "TCP connections to each peer"),
    ROW(FLAG_SYNC_INTERVAL, "sync_interval", "H", "100", S, FLAG_FIRST | FLAG_SYNC, NULL, NULL,
        "optimizer steps between merges; or STEP:H,... as in 0:1,500:16"),
    ROW(FLAG_OUTER, "outer", "RULE", "auto", S, FLAG_FIRST | FLAG_SYNC, NULL, NULL,
        "outer step: auto, avg, slowmo, nesterov[:lr=..,beta=..]"),
    ROW(FLAG_CODEC, "codec", "NAME", "fp32", S, FLAG_FIRST | FLAG_SYNC, NULL, NULL,
        "what travels: fp32, bf16, int8, int4"),
    ROW(FLAG_NO_SYNC_AT_EPOCH_END, "no_sync_at_epoch_end", NULL, "off", S, FLAG_SYNC, NULL, NULL,
        "no merge at the end of a pass over a DataLoader"),
    ROW(FLAG_LINGER, "linger", NULL, "off", S, FLAG_SYNC, NULL, NULL,
        "late joiners go on after the founders have finished"),
    ROW(FLAG_STATE_DIR, "state_dir", "DIR", NULL, S, FLAG_SYNC, NULL, NULL,
        "keep committed anchors here, to outlive the loss of all nodes"),
    ROW(FLAG_LOG_DIR, "log_dir", "DIR", "temporary", O, FLAG_FIRST | FLAG_PLAIN, NULL,
        "PET_LOG_DIR", "one directory a job: logs of ranks, events of the sync"),
    ROW(FLAG_LOG_SIZE, "log_size", "SIZE", "256MiB", O, FLAG_SYNC, NULL, NULL,
        "a rank's log begins anew at this size, the former is kept as .1; or none"),
    ROW(FLAG_LOG_FORMAT, "log_format", "FORMAT", "text", O, 0, NULL, NULL,
        "text, or json: one object a line"),
    ROW(FLAG_COLOR, "color", "WHEN", "auto", O, 0, NULL, NULL, "auto, always, never"),
    ROW(FLAG_VERBOSE, "verbose", NULL, "off", O, FLAG_FIRST, NULL, NULL, "say what was chosen"),
    ROW(FLAG_CONFIG, "config", "FILE", "./solo.toml", O, 0, NULL, NULL,
        "file with `name = value` lines"),
    ROW(FLAG_PRINT_CONFIG, "print_config", NULL, NULL, O, FLAG_ACTION, NULL, NULL,
        "print every value and where it comes from"),
    ROW(FLAG_DRY_RUN, "dry_run", NULL, NULL, O, FLAG_FIRST | FLAG_ACTION, NULL, NULL,
        "check, print the command, start nothing"),
    ROW(FLAG_JSON, "json", NULL, NULL, O, FLAG_ACTION, NULL, NULL,
        "status and doctor: one JSON object"),
    ROW(FLAG_VERSION, "version", NULL, NULL, O, FLAG_ACTION, NULL, NULL,
        "versions of solo, its protocol, and the torch it would use"),
    ROW(FLAG_HELP, "help", NULL, NULL, O, FLAG_ACTION, NULL, NULL, "this page"),
    ROW(FLAG_HELP_ALL, "help_all", NULL, NULL, O, FLAG_FIRST | FLAG_ACTION, NULL, NULL,
        "every flag, with torchrun's"),
};

static const char by_master[] = "nodes meet at --master_url; torchrun only runs this node's ranks";

const struct torchrun_flag torchrun_table[] = {
    {"nnodes", 0, true, NULL}, /* ours as well */
    {"nproc_per_node", 0, true, NULL},
    {"rdzv_backend", 0, true, by_master},
    {"rdzv_endpoint", 0, true, by_master},
    {"rdzv_id", 0, true, by_master},
    {"rdzv_conf", 0, true, by_master},
    {"standalone", 0, false, NULL},
    {"max_restarts", 0, true, NULL},
    {"monitor_interval", 0, true, NULL},
    {"start_method", 0, true, NULL},
    {"event_log_handler", 0, true, NULL},
    {"role", 0, true, NULL},
    {"module", 'm', false, NULL},
    {"no_python", 0, false, NULL},
    {"run_path", 0, false, NULL},
    {"log_dir", 0, true, NULL}, /* ours as well */
    {"redirects", 'r', true, NULL},
    {"tee", 't', true, NULL},
    {"local_ranks_filter", 0, true, NULL},
    {"duplicate_stdout_filters", 0, true, NULL},
    {"duplicate_stderr_filters", 0, true, NULL},
    {"node_rank", 0, true, NULL}, /* ours as well */
    {"master_addr", 0, true, by_master},
    {"master_port", 0, true, by_master},
    {"local_addr", 0, true, NULL},
    {"logs_specs", 0, true, NULL},
    {"numa_binding", 0, true, NULL},
    {"signals_to_handle", 0, true, NULL},
    {"shutdown_timeout", 0, true, NULL},
    {"virtual_local_rank", 0, false, NULL},
    {"print_completion", 0, true, NULL},         /* torch 2.14 */
    {"log_line_prefix_template", 0, true, NULL}, /* torch 2.14 */
};
const int torchrun_count = sizeof torchrun_table / sizeof *torchrun_table;

enum flag_id flag_find(const char *name)
{
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        if (text_same_name(name, flag_table[id].name)) {
            return id;
        }
    }
    return FLAG_COUNT;
}

const char *flag_variable(enum flag_id id)
{
    if (flag_table[id].variable) {
        return flag_table[id].variable;
    }
    char *name = text_format("SOLO_%s", flag_table[id].name);
    for (char *at = name; *at; at++) {
        *at = (char)toupper((unsigned char)*at);
    }
    return name;
}

int torchrun_find(const char *name)
{
    for (int i = 0; i < torchrun_count; i++) {
        if (text_same_name(name, torchrun_table[i].name)) {
            return i;
        }
    }
    return -1;
}

static void nearer(const char *name, const char *candidate, size_t *best, const char **nearest)
{
    size_t distance = text_distance(name, candidate);
    bool beginning = strlen(name) >= 4 && strncmp(name, candidate, strlen(name)) == 0;
    if (beginning) {
        distance = 1; /* torchrun takes unambiguous beginnings; we name the whole */
    }
    if (distance < *best) {
        *best = distance;
        *nearest = candidate;
    }
}

const char *flag_nearest(const char *name, bool ours_only)
{
    const char *nearest = NULL;
    size_t best = strlen(name) / 3 + 2; /* farther than that is no slip of the finger */
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        if (!ours_only || !(flag_table[id].traits & FLAG_ACTION)) {
            nearer(name, flag_table[id].name, &best, &nearest);
        }
    }
    for (int i = 0; i < torchrun_count && !ours_only; i++) {
        nearer(name, torchrun_table[i].name, &best, &nearest);
    }
    return nearest;
}
