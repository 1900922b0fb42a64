#include "preflight.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "folder.h"
#include "number.h"

enum {
    SHM_MIN_MIB = 64, /* what Docker gives when nobody asks; DataLoaders die in it */
    FILES_MIN = 1024,
    FILES_LEAST = 64, /* with fewer torchrun's own store stands still, without a word */
    TOKEN_BYTES_MAX = 4096,
};

/* The last flag takes the next word for its value: `--device_count train.py` has no script. */
static struct finding no_script(const struct args *args)
{
    const char *eater = NULL, *eaten = NULL;
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        const char *value = args->value[id];
        size_t count = value ? strlen(value) : 0;
        if (flag_table[id].value && count > 3 && strcmp(value + count - 3, ".py") == 0) {
            eater = text_format("--%s", flag_table[id].name);
            eaten = value;
        }
    }
    for (int i = 0; i < args->torchrun_count && !eater; i++) {
        const char *value = args->torchrun[i].value;
        size_t count = value ? strlen(value) : 0;
        if (count > 3 && strcmp(value + count - 3, ".py") == 0) {
            eater = args->torchrun[i].words[0];
            eaten = value;
        }
    }
    if (eater) {
        return fail(CODE_NO_SCRIPT, text_format("there is no script: %s took %s", eater, eaten),
                    text_format("%s needs a value, and the word after it is that", eater),
                    text_format("%s VALUE %s", eater, eaten), "solorun --help");
    }
    return fail(CODE_NO_SCRIPT, "there is no script to run", NULL,
                "solorun [flags] train.py [its flags]", "solorun --help");
}

struct finding preflight_script(struct launch *launch)
{
    const struct args *args = launch->args;
    if (!args->script) {
        return args->command ? fine("none") : no_script(args);
    }
    if (args->module || args->no_python) {
        return fine("%s", args->script); /* Python or PATH finds it */
    }
    struct stat status;
    if (stat(args->script, &status) < 0 || access(args->script, R_OK) < 0) {
        char folder[PATH_MAX];
        const char *where = getcwd(folder, sizeof folder) ? folder : "?";
        return fail(CODE_SCRIPT, text_format("script %s: %s", args->script, strerror(errno)),
                    text_format("looked for it in %s on %s", where, machine_name()),
                    "check the path; a module needs -m", NULL);
    }
    if (S_ISDIR(status.st_mode) && access(text_format("%s/__main__.py", args->script), R_OK) < 0) {
        return fail(CODE_SCRIPT, text_format("script %s is a directory", args->script),
                    "without a __main__.py in it", NULL, NULL);
    }
    return fine("%s", args->script);
}

/* Without --solo the user's own; only a rank outside of its world hangs torchrun. */
static struct finding check_plain_rank(struct launch *launch)
{
    uint64_t nodes = 1, rank = 0;
    const struct settings *settings = &launch->settings;
    const char *nnodes = settings->of[FLAG_NNODES].value;
    const char *backend = args_torchrun_value(launch->args, "rdzv_backend");
    if (!settings_explicit(settings, FLAG_NODE_RANK) ||
        (backend && strcmp(backend, "static") != 0)) {
        return fine("torchrun's");
    }
    if (!nnodes && getenv("PET_NNODES")) {
        nnodes = getenv("PET_NNODES");
    }
    if (nnodes && !number_count(nnodes, 1, UINT32_MAX, &nodes)) {
        return strchr(nnodes, ':') ? fine("torchrun's")
                                   : fail(CODE_VALUE, text_format("--nnodes %s", nnodes), NULL,
                                          "N, or MIN:MAX without --solo", NULL);
    }
    if (!number_count(launch_text(launch, FLAG_NODE_RANK), 0, nodes - 1, &rank)) {
        return fail(CODE_NODE_RANK,
                    text_format("node_rank %s of %llu node%s", launch_text(launch, FLAG_NODE_RANK),
                                (unsigned long long)nodes, nodes == 1 ? "" : "s"),
                    "without --solo the world has --nnodes nodes, and torchrun would wait for "
                    "ever",
                    "--nnodes N, the same on every node; or --solo", NULL);
    }
    return fine("torchrun's");
}

struct finding preflight_torchrun_flags(struct launch *launch)
{
    if (!launch->solo) {
        return check_plain_rank(launch);
    }
    static const char *const in_fixed[] = {"rdzv_conf", "master_addr", "master_port"};
    for (int i = 0; i < launch->args->torchrun_count; i++) {
        const struct torchrun_flag *flag = &torchrun_table[launch->args->torchrun[i].flag];
        bool allowed = !flag->refused;
        for (size_t j = 0; launch->fixed && j < sizeof in_fixed / sizeof *in_fixed; j++) {
            allowed |= strcmp(flag->name, in_fixed[j]) == 0;
        }
        if (!allowed) {
            return fail(CODE_TORCHRUN_FLAG,
                        text_format("%s together with --solo", launch->args->torchrun[i].words[0]),
                        flag->refused,
                        "leave it out; --master_url tcp://HOST:PORT, or run "
                        "without --solo",
                        NULL);
        }
    }
    return fine("%d passed on", launch->args->torchrun_count);
}

/* Behind NAT or in a container the others use an address that this machine does not have. */
static struct finding mapped(const struct launch *launch, const char *text)
{
    const char *what = text_format("--worker_url %s is not an address of this machine", text);
    if (launch->master_loopback) {
        return fail(CODE_WORKER_URL, what,
                    "the master is on loopback, so all nodes are on this machine",
                    "leave it out, or --worker_url tcp://127.0.0.1:PORT", "ip addr");
    }
    return warn(CODE_WORKER_URL, what,
                text_format("the other nodes connect to it, which works if port %u there is mapped "
                            "to port %u here",
                            launch->worker.port, launch->worker.port),
                "nothing if so; else leave it out: the route to the master decides");
}

struct finding preflight_worker_url(struct launch *launch)
{
    const char *text = launch->settings.of[FLAG_WORKER_URL].value, *why;
    if (!text) {
        return fine("by the route to the master");
    }
    struct address address;
    if (!machine_url_parse(text, &launch->worker, &why) ||
        !machine_resolve(&launch->worker, &address, &why)) {
        return fail(CODE_WORKER_URL, text_format("--worker_url %s", text), why,
                    "tcp://HOST:PORT where the other nodes reach this one", NULL);
    }
    launch->has_worker = true;
    if (machine_is_loopback(&address) && launch->master_address.size && !launch->master_loopback) {
        return fail(CODE_WORKER_URL,
                    text_format("--worker_url %s is loopback, the master %s is not", text,
                                launch->master_text),
                    "other machines would connect to themselves",
                    launch->own_address ? text_format("leave it out, or --worker_url tcp://%s:%u",
                                                      launch->own_address, launch->worker.port)
                                        : "leave it out: the route to the master decides",
                    NULL);
    }
    if (launch->node_rank == 0 && launch->worker.port == launch->master.port) {
        return fail(
            CODE_WORKER_URL,
            text_format("--worker_url and --master_url both have port %u", launch->worker.port),
            "node 0 serves the master there",
            text_format("--worker_url tcp://%s:%u", launch->worker.host, launch->worker.port + 1u),
            NULL);
    }
    if (!machine_is_local(&address)) {
        return mapped(launch, text);
    }
    int fd = machine_listen(&address, false);
    if (fd < 0) {
        const char *holder = machine_port_holder(launch->worker.port);
        return fail(CODE_PORT,
                    text_format("port %u of --worker_url: %s", launch->worker.port, strerror(-fd)),
                    holder ? text_format("it is held by %s", holder) : NULL,
                    text_format("--worker_url tcp://%s:%u is free", launch->worker.host,
                                machine_free_port()),
                    NULL);
    }
    close(fd);
    return fine("%s", text);
}

/* On a GPU the ranks check it against the device; here only the host's memory is known. */
struct finding preflight_memory(struct launch *launch)
{
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGE_SIZE);
    uint64_t ranks = launch->device.count > 0 ? (uint64_t)launch->device.count : 1;
    bool on_host = !launch->gpus || (launch->device.visible && !*launch->device.visible);
    if (!launch->memory_bytes || !on_host || launch->memory_bytes / page <= pages / ranks) {
        return fine("%s", launch->memory_bytes ? launch_text(launch, FLAG_MEMORY) : "no limit");
    }
    return fail(
        CODE_MEMORY,
        text_format("--memory %s for each of %llu ranks", launch_text(launch, FLAG_MEMORY),
                    (unsigned long long)ranks),
        text_format("this machine has %.1f GiB", (double)(pages * page) / (1u << 30)),
        text_format("at most --memory %lluMiB", (unsigned long long)(pages * page / ranks >> 20)),
        NULL);
}

static struct finding read_token(struct launch *launch, const char *path)
{
    struct stat status;
    char real[PATH_MAX];
    if (stat(path, &status) < 0 || !realpath(path, real)) {
        return fail(CODE_TOKEN_FILE, text_format("token file %s: %s", path, strerror(errno)), NULL,
                    text_format("(umask 077; openssl rand -hex 32 > %s), the same file on every "
                                "node",
                                text_shell(path)),
                    NULL);
    }
    if (!S_ISREG(status.st_mode)) {
        return fail(CODE_TOKEN_FILE, text_format("token file %s is no regular file", path),
                    "every rank reads it again",
                    "write the token into a file of its own, with mode 600", NULL);
    }
    if (status.st_mode & (S_IRWXG | S_IRWXO)) {
        return fail(CODE_TOKEN_FILE,
                    text_format("token file %s can be read by others (mode %03o)", path,
                                (unsigned)status.st_mode & 0777u),
                    "whoever has the token can join the job and change the model",
                    text_format("chmod 600 %s", text_shell(path)), NULL);
    }
    char *text = text_read_file(real, TOKEN_BYTES_MAX);
    launch->token = text ? text_trim(text) : "";
    if (!*launch->token) {
        return fail(CODE_TOKEN_FILE,
                    text_format("token file %s is %s", path, text ? "empty" : "not readable"), NULL,
                    text_format("openssl rand -hex 32 > %s", text_shell(path)), NULL);
    }
    launch->token_file = text_copy(real);
    return fine("from %s", path);
}

struct finding preflight_token(struct launch *launch)
{
    const char *file = launch->settings.of[FLAG_TOKEN_FILE].value;
    const char *secret = getenv("SOLO_TOKEN");
    if (file) {
        return read_token(launch, file);
    }
    if (secret && *secret) {
        launch->token = secret;
        return fine("from SOLO_TOKEN");
    }
    if (launch->master_loopback || !launch->master_text) {
        return fine("none, loopback only");
    }
    if (launch->insecure) {
        return warn(CODE_TOKEN_NONE, "--insecure: whoever reaches the ports can join the job",
                    "there is no token, and the master is not on loopback",
                    "--token_file FILE on every node");
    }
    return fail(
        CODE_TOKEN_NONE, text_format("no token, but the master is at %s", launch->master_text),
        "without a shared secret only loopback addresses are accepted",
        "--token_file FILE with the same secret on every node, SOLO_TOKEN, or --insecure", NULL);
}

/* A real start makes and tries it; doctor and --dry_run leave no trace. */
static struct finding check_folder(const struct launch *launch, enum code code, const char *flag,
                                   const char *path)
{
    bool starts = !launch->dry_run && !launch->args->command;
    const char *why = starts ? folder_probe(path) : folder_obstacle(path);
    return why ? fail(code, text_format("%s %s cannot be written", flag, path), why,
                      "choose another directory, or mend its owner and permissions", NULL)
               : fine("%s", path);
}

static char *absolute(const char *path)
{
    char folder[PATH_MAX];
    return *path == '/' || !getcwd(folder, sizeof folder) ? text_copy(path)
                                                          : text_format("%s/%s", folder, path);
}

static struct finding take_folder(const struct launch *launch, enum code code, const char *flag,
                                  const char *given, const char **path_out)
{
    if (!*given) {
        return fail(code, text_format("%s is empty", flag), "a variable that is not set?",
                    "name a directory, or leave the flag out", NULL);
    }
    *path_out = absolute(given);
    return check_folder(launch, code, flag, *path_out);
}

struct finding preflight_log_dir(struct launch *launch)
{
    const char *given = launch->settings.of[FLAG_LOG_DIR].value, *base = getenv("TMPDIR");
    launch->log_dir_temporary = !given;
    if (!given) { /* mkdtemp will tell */
        launch->log_dir = text_format("%s/solo-XXXXXX", base && *base ? base : "/tmp");
        return fine("a temporary one");
    }
    return take_folder(launch, CODE_LOG_DIR, "--log_dir", given, &launch->log_dir);
}

struct finding preflight_state_dir(struct launch *launch)
{
    const char *given = launch->settings.of[FLAG_STATE_DIR].value;
    return given ? take_folder(launch, CODE_STATE_DIR, "--state_dir", given, &launch->state_dir)
                 : fine("none");
}

struct finding preflight_shared_memory(struct launch *launch)
{
    struct statvfs status;
    (void)launch;
    if (statvfs("/dev/shm", &status) < 0) {
        return warn(CODE_SHM, "/dev/shm is not there",
                    "ranks of one host and DataLoader processes share memory through it",
                    "mount a tmpfs at /dev/shm");
    }
    unsigned long long mib = (unsigned long long)status.f_blocks * status.f_frsize >> 20;
    unsigned long long left = (unsigned long long)status.f_bavail * status.f_frsize >> 20;
    if (mib <= SHM_MIN_MIB || left < SHM_MIN_MIB / 2) {
        return warn(CODE_SHM, text_format("/dev/shm has %llu MiB, %llu MiB free", mib, left),
                    "ranks of one host and DataLoader processes share memory through it",
                    "--ipc=host or --shm-size=1g (Docker), emptyDir {medium: Memory} (Kubernetes)");
    }
    return fine("/dev/shm %llu MiB, %llu MiB free", mib, left);
}

struct finding preflight_open_files(struct launch *launch)
{
    struct rlimit limit;
    (void)launch;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) {
        return fine("unknown");
    }
    if (limit.rlim_cur < FILES_MIN && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max < FILES_MIN ? limit.rlim_max : FILES_MIN;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    char *told = text_format("at most %llu open files", (unsigned long long)limit.rlim_cur);
    if (limit.rlim_cur < FILES_LEAST) {
        return fail(CODE_FILES, told, "torchrun and its ranks cannot start with so few",
                    "ulimit -n 65536", NULL);
    }
    if (limit.rlim_cur < FILES_MIN) {
        return warn(CODE_FILES, told, "connections, DataLoaders and shared tensors each hold some",
                    "ulimit -n 65536");
    }
    return fine("%llu", (unsigned long long)limit.rlim_cur);
}
