#include "message.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

enum { STATUS_OF_RANK = -1, STATUS_NOT_EXECUTABLE = 126, STATUS_NOT_FOUND = 127 };

static const struct {
    enum code code;
    int status;
    const char *meaning, *remedy;
} codes[] = {
    {CODE_FLAG, EX_USAGE, "unknown flag, or a flag without its value",
     "`solorun --help_all` lists the flags; the script's own come after the script"},
    {CODE_VALUE, EX_USAGE, "a value that its flag does not take", "the message shows the form"},
    {CODE_NO_SCRIPT, EX_USAGE, "no script on the command line", "solorun [flags] train.py"},
    {CODE_SCRIPT, STATUS_NOT_FOUND, "the script does not exist or cannot be read",
     "check the path and the working directory of this node"},
    {CODE_CONFIG, EX_DATAERR, "a configuration file that cannot be read or understood",
     "lines are `name = value`, with the names of the flags"},
    {CODE_TORCHRUN_FLAG, EX_USAGE, "a torchrun flag that contradicts --solo",
     "leave it out; --master_url and --nnodes say the same"},
    {CODE_CONTRADICTION, EX_USAGE, "two flags say different things", "keep one of them"},
    {CODE_MASTER_URL, EX_USAGE, "--master_url is missing or malformed",
     "tcp://HOST:PORT, the same on every node"},
    {CODE_NODE_RANK, EX_USAGE, "--node_rank is missing or out of range",
     "give every node its own number from 0"},
    {CODE_UNREACHABLE, EX_UNAVAILABLE, "the master did not answer until --timeout",
     "start node 0 or `solorun master`; check name, port and firewall"},
    {CODE_RANK_HELD, EX_CONFIG, "another live node of the job has this node_rank",
     "give this node a number of its own"},
    {CODE_SECOND_MASTER, EX_CONFIG, "the job already has a master",
     "use the running one, or stop it first"},
    {CODE_PORT, EX_OSERR, "the port is held by another process",
     "stop that process, or choose another port on every node"},
    {CODE_NOT_SOLO, EX_CONFIG, "something that is not a solo master listens at the port",
     "check --master_url"},
    {CODE_OTHER_JOB, EX_CONFIG, "the master at the URL serves another job",
     "check --master_url and --job_id"},
    {CODE_WIRE, EX_CONFIG, "the master speaks another version of the protocol",
     "install the same solo on every node"},
    {CODE_VERSIONS, EX_CONFIG, "this node's solo or torch differs from the job's",
     "install the same versions on every node"},
    {CODE_WORKER_URL, EX_USAGE, "--worker_url cannot be served or reached by the others",
     "an address of this node that the others can reach"},
    {CODE_LOOPBACK, EX_USAGE, "a loopback master though more nodes are expected",
     "--master_url with an address that the other nodes can reach"},
    {CODE_MISSING, EX_TEMPFAIL, "nodes were missing at the deadline",
     "start the missing nodes, or raise --timeout"},
    {CODE_SETTINGS, EX_CONFIG, "interval, outer rule or codec differ from those of the job",
     "the same --sync_interval, --outer and --codec on every node"},
    {CODE_CLOCK, EX_CONFIG, "a warning: this machine's clock is not the master's",
     "set both by NTP; merges need no clock, but times in logs do not fit together"},
    {CODE_DEVICES, EX_USAGE, "more ranks or other GPUs than this node has",
     "--device_count and --gpus within CUDA_VISIBLE_DEVICES"},
    {CODE_INTERVAL, EX_USAGE, "--sync_interval is not a number of steps or a schedule",
     "100, or 0:1,500:16"},
    {CODE_MEMORY, EX_USAGE, "--memory is not a size, or more than the machine has", "16GiB"},
    {CODE_TOKEN_FILE, EX_NOPERM, "the token file is missing, empty or readable by others",
     "chmod 600 FILE"},
    {CODE_TOKEN_NONE, EX_NOPERM, "other machines without a token",
     "--token_file, or --insecure in a network where everyone is trusted"},
    {CODE_TOKEN_WRONG, EX_NOPERM, "the master refuses this node's token",
     "the same secret on every node"},
    {CODE_LOG_DIR, EX_CANTCREAT, "--log_dir cannot be written", "choose another directory"},
    {CODE_STATE_DIR, EX_CANTCREAT, "--state_dir cannot be written", "choose another directory"},
    {CODE_SHM, EX_OSERR, "/dev/shm is missing or too small",
     "--ipc=host, --shm-size=1g, or emptyDir {medium: Memory}"},
    {CODE_FILES, EX_OSERR, "the limit of open files is too low", "ulimit -n 65536"},
    {CODE_PYTHON, STATUS_NOT_FOUND, "no Python was found", "activate the environment with torch"},
    {CODE_TORCH, STATUS_NOT_FOUND, "the chosen Python has no torch", "pip install torch"},
    {CODE_TORCH_FIT, EX_CONFIG, "solo was built for another torch, or is not installed as a whole",
     "install it again beside the torch that is there"},
    {CODE_EXEC, STATUS_NOT_EXECUTABLE, "Python could not be started", "check the interpreter"},
    {CODE_MASTER_START, EX_OSERR, "the master could not be started", "see master.log"},
    {CODE_SLURM, EX_USAGE, "Slurm starts one task a GPU instead of one a node",
     "--ntasks-per-node=1"},
    {CODE_RANK_FAILED, STATUS_OF_RANK, "a rank of this node failed",
     "the message shows its exception and log file; the status is the rank's own"},
    {CODE_SIGNALLED, STATUS_OF_RANK, "solorun was told to stop by a signal",
     "the status is 128 + the signal's number"},
    {CODE_OVER, EX_CONFIG, "the job at the master is over", "start the job again"},
    {CODE_NO_MEMORY, EX_OSERR, "out of memory", "-"},
};
enum { CODE_COUNT = sizeof codes / sizeof *codes };

static bool colored, as_json;
static int node = -1;

struct finding fine(const char *format, ...)
{
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return (struct finding){.level = LEVEL_OK, .what = text_copy(text)};
}

struct finding warn(enum code code, const char *what, const char *why, const char *fix)
{
    return (struct finding){
        .level = LEVEL_WARN, .code = code, .what = what, .why = why, .fix = fix};
}

struct finding fail(enum code code, const char *what, const char *why, const char *fix,
                    const char *next)
{
    return (struct finding){
        .level = LEVEL_FAIL, .code = code, .what = what, .why = why, .fix = fix, .next = next};
}

void message_style(const char *color, const char *format)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool plain = (no_color && *no_color) || (term && strcmp(term, "dumb") == 0);
    colored = strcmp(color, "always") == 0 ||
              (strcmp(color, "auto") == 0 && !plain && isatty(STDERR_FILENO));
    as_json = strcmp(format, "json") == 0;
}

void message_node(int node_rank)
{
    node = node_rank;
}

static void json_line(const char *level, const struct finding *finding)
{
    struct timespec now;
    struct tm utc;
    char when[32], rank[16] = "null", code[24] = "null";
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    if (node >= 0) {
        snprintf(rank, sizeof rank, "%d", node);
    }
    if (finding->code) {
        snprintf(code, sizeof code, "\"SOLO-E%03d\"", (int)finding->code);
    }
    fprintf(stderr,
            "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"node\":%s,\"rank\":null,"
            "\"event\":\"launcher\",\"code\":%s,\"text\":%s",
            when, now.tv_nsec / 1000000, level, rank, code, text_json(finding->what));
    const char *const names[] = {"why", "fix", "next"};
    const char *const values[] = {finding->why, finding->fix, finding->next};
    for (int i = 0; i < 3; i++) {
        if (values[i]) {
            fprintf(stderr, ",\"%s\":%s", names[i], text_json(values[i]));
        }
    }
    fputs("}\n", stderr);
}

void message_print(const struct finding *finding)
{
    if (finding->level == LEVEL_OK) {
        return;
    }
    bool failed = finding->level == LEVEL_FAIL;
    if (as_json) {
        json_line(failed ? "error" : "warn", finding);
        return;
    }
    const char *on = !colored ? "" : failed ? "\033[1;31m" : "\033[1;33m";
    const char *off = colored ? "\033[0m" : "";
    fprintf(stderr, "solorun: %s%s SOLO-E%03d%s: %s\n", on, failed ? "error" : "warning",
            (int)finding->code, off, finding->what);
    if (finding->why) {
        fprintf(stderr, "  why: %s\n", finding->why);
    }
    if (finding->fix) {
        fprintf(stderr, "  fix: %s\n", finding->fix);
    }
    if (finding->next) {
        fprintf(stderr, "  next: %s\n", finding->next);
    }
}

static void note(const char *prefix, const char *format, va_list values)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, values);
    if (as_json) {
        struct finding finding = {.what = text};
        json_line("info", &finding);
    } else {
        fprintf(stderr, "%s%s\n", prefix, text);
    }
}

void message_note(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    note("solorun: ", format, values);
    va_end(values);
}

void message_more(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    note("  ", format, values);
    va_end(values);
}

int message_status(enum code code)
{
    for (int i = 0; i < CODE_COUNT; i++) {
        if (codes[i].code == code) {
            return codes[i].status;
        }
    }
    return EX_SOFTWARE;
}

void message_end_if_failed(const struct finding *finding)
{
    if (finding->level == LEVEL_FAIL) {
        message_print(finding);
        exit(message_status(finding->code));
    }
}

void message_document(void)
{
    puts("# Errors of solorun\n\n"
         "Every error has a code that never changes and an exit status that a scheduler can act\n"
         "on. This page is printed by `solorun errors`; a test compares the two.\n\n"
         "| code | exit status | what happened | what to do |\n|---|---|---|---|");
    for (int i = 0; i < CODE_COUNT; i++) {
        char status[16] = "the rank's";
        if (codes[i].status != STATUS_OF_RANK) {
            snprintf(status, sizeof status, "%d", codes[i].status);
        }
        printf("| SOLO-E%03d | %s | %s | %s |\n", (int)codes[i].code, status, codes[i].meaning,
               codes[i].remedy);
    }
    puts("\n| exit status | meaning | worth a retry |\n|---|---|---|\n"
         "| 0 | the script ended well on this node | - |\n"
         "| the script's own, 128 + N | a rank ended so, or died of signal N (139: SIGSEGV; 137: "
         "SIGKILL, often out of memory) | the user knows |\n"
         "| 64, 65 | usage; bad configuration or data | never |\n"
         "| 69 | master unreachable | yes |\n"
         "| 71 | system resources: port, shared memory, descriptors | on another node |\n"
         "| 73 | log or state directory not writable | never |\n"
         "| 75 | nodes missing at the deadline | yes |\n"
         "| 77 | token missing or wrong | never |\n"
         "| 78 | refused: versions, node_rank taken, other job | never |\n"
         "| 126, 127 | cannot execute, not found | never |");
}
