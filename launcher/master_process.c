#include "master_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agree.h"
#include "master_watch.h"
#include "number.h"
#include "reach.h"

enum {
    ASK_MS = 900,      /* whoever listens at our port answers within this, or is not solo */
    READY_MS = 10000,  /* for the started master to say that it serves */
    REPLACE_MS = 3000, /* for a master without members to go */
    LOG_BYTES_MAX = 16 << 20,
    FIRST_MS = 30000, /* for node 0's script to be ready first, where the world is not fixed */
};

/* What node 0 hands to the master it starts; internal, so not in the table of flags. */
static const char listen_variable[] = "SOLO_MASTER_LISTEN_FD";
static const char ready_variable[] = "SOLO_MASTER_READY_FD";
static const char versions_variable[] = "SOLO_MASTER_VERSIONS";

/* ---- whose port is it? ------------------------------------------------------------------ */

/* " since 2026-11-30 10:31:15": its incarnation is when it began, in microseconds. */
static const char *since(const struct solo_status *status)
{
    enum { SECOND_US = 1000000 };
    char path[32];
    struct stat process;
    struct tm local;
    time_t seconds = (time_t)(status->incarnation / SECOND_US);
    if (!seconds) { /* before its first epoch it does not tell */
        snprintf(path, sizeof path, "/proc/%d", (int)status->master_pid);
        if (strcmp(status->master_name, machine_name()) != 0 || stat(path, &process) < 0) {
            return "";
        }
        seconds = process.st_mtim.tv_sec;
    }
    char when[32];
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&seconds, &local));
    return text_format(" since %s", when);
}

static struct finding second_master(const struct launch *launch, const struct solo_status *status)
{
    unsigned long long pid = status->master_pid;
    return fail(
        CODE_SECOND_MASTER,
        text_format("job %s has a master already: pid %llu on %s%s", launch->job_id, pid,
                    status->master_name, since(status)),
        text_format("it serves %u members at %s", status->member_count, launch->master_text),
        text_format("use it, or end it first: kill %llu", pid),
        text_format("solorun status %s", launch->master_text));
}

static struct finding port_held(const struct launch *launch, int why)
{
    const char *holder = machine_port_holder(launch->master.port);
    unsigned port = machine_free_port();
    return fail(CODE_PORT,
                text_format("port %u of --master_url: %s", launch->master.port, strerror(why)),
                holder ? text_format("it is held by %s", holder)
                       : "the process that holds it belongs to another user",
                text_format("--master_url %s is free; the same on every node",
                            machine_url_text(launch->master.host, port)),
                text_format("ss -ltnp 'sport = :%u'", launch->master.port));
}

/* A master that a former node 0 started and that nobody uses any more is told to end; one that
 * still has members gets this node in place of the former. */
static bool replace_abandoned(const struct solo_status *status)
{
    pid_t pid = (pid_t)status->master_pid;
    if (strcmp(status->master_name, machine_name()) != 0 || !master_watch_is_abandoned(pid)) {
        return false;
    }
    if (status->member_count > 0) {
        master_watch_adopt(pid);
        return false;
    }
    return kill(pid, SIGTERM) == 0;
}

static int listen_again(const struct launch *launch)
{
    uint64_t deadline = reach_now_ms() + REPLACE_MS;
    int fd;
    while ((fd = machine_listen(&launch->master_address, true)) == -EADDRINUSE &&
           reach_now_ms() < deadline) {
        struct timespec pause = {.tv_nsec = 20000000};
        nanosleep(&pause, NULL);
    }
    return fd;
}

/* Nobody chose the port: any free one does for a job that is alone on this machine. */
static bool move_to_free_port(struct launch *launch, int *fd)
{
    if (launch->settings.of[FLAG_MASTER_URL].value ||
        !(launch->master.port = machine_free_port())) {
        return false;
    }
    const char *why;
    launch->master_text = machine_url_text(launch->master.host, launch->master.port);
    if (!launch_resolve_master(launch, &why)) {
        return false;
    }
    *fd = machine_listen(&launch->master_address, true);
    if (*fd >= 0) {
        message_note("port %u is taken by another job: the master is at %s", SOLO_PORT_DEFAULT,
                     launch->master_text);
    }
    return *fd >= 0;
}

/* Decides what to do about a taken port. *fd >= 0: bound after all; -1: use who is there. */
static struct finding settle_taken_port(struct launch *launch, bool alone, int *fd)
{
    struct solo_status status;
    struct finding finding = reach_once(launch, ASK_MS, &status, false);
    *fd = -1;
    if (status.reach == SOLO_REACHED) {
        if (!alone && !replace_abandoned(&status)) {
            return reach_running_master(launch); /* node 0 came back while its master lives */
        }
        if (alone) {
            return second_master(launch, &status);
        }
        *fd = listen_again(launch);
        return *fd < 0 ? port_held(launch, -*fd) : fine("replaced");
    }
    if (!alone && move_to_free_port(launch, fd)) {
        return fine("%s", launch->master_text);
    }
    return status.reach == SOLO_OTHER_JOB || status.reach == SOLO_BAD_TOKEN
               ? finding
               : port_held(launch, EADDRINUSE);
}

/* ---- the start by node 0 ---------------------------------------------------------------- */

static struct list master_words(const struct launch *launch, const char *self)
{
    struct list argv = {0};
    list_add(&argv, self);
    list_add(&argv, "master");
    list_addf(&argv, "--master_url=%s", launch->master_text);
    list_addf(&argv, "--job_id=%s", launch->job_id);
    list_addf(&argv, "--log_dir=%s", launch->log_dir);
    list_addf(&argv, "--min_nodes=%d", launch->min_nodes);
    list_addf(&argv, "--timeout=%ums", launch->timeout_ms);
    list_addf(&argv, "--lease=%ums", launch->lease_ms);
    static const enum flag_id told[] = {FLAG_SYNC_INTERVAL, FLAG_OUTER, FLAG_CODEC};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        list_addf(&argv, "--%s=%s", flag_table[told[i]].name,
                  agree_text(told[i], launch_text(launch, told[i])));
    }
    if (launch->nnodes) {
        list_addf(&argv, "--nnodes=%d", launch->nnodes);
    }
    if (launch->token_file) {
        list_addf(&argv, "--token_file=%s", launch->token_file);
    }
    if (launch->insecure) {
        list_add(&argv, "--insecure");
    }
    if (launch->settings.of[FLAG_LINGER].value) {
        list_add(&argv, "--linger");
    }
    return argv;
}

/* In the grandchild: its own log instead of the terminal, then `solorun master`. */
static void become_master(const struct list *argv, const char *log, int listen_fd, int ready_fd)
{
    int null = open("/dev/null", O_RDONLY);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (null < 0 || out < 0) {
        dprintf(ready_fd, "cannot write %s: %s", log, strerror(errno));
        _exit(EXIT_FAILURE);
    }
    dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    close(null);
    close(out);
    setenv(listen_variable, text_format("%d", listen_fd), 1);
    setenv(ready_variable, text_format("%d", ready_fd), 1);
    execv(argv->items[0], argv->items);
    dprintf(ready_fd, "cannot execute %s: %s", argv->items[0], strerror(errno));
    _exit(EXIT_FAILURE);
}

/* Forks twice, so that the master is nobody's child and has a session of its own. */
static void fork_master(const struct list *argv, const char *log, int listen_fd, int ready_fd,
                        int watch_fd, pid_t node)
{
    pid_t child = fork();
    if (child != 0) {
        if (child > 0) {
            waitpid(child, NULL, 0);
        }
        return;
    }
    setsid();
    setenv(master_watch_variable, text_format("%d:%d", watch_fd, (int)node), 1);
    if (fork() != 0) {
        _exit(EXIT_SUCCESS);
    }
    become_master(argv, log, listen_fd, ready_fd);
}

/* What the master says first: "ok", or why it cannot serve. */
static struct finding await_ready(int fd, const char *log)
{
    char text[SOLO_TEXT_MAX] = {0};
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    ssize_t count = poll(&ready, 1, READY_MS) > 0 ? read(fd, text, sizeof text - 1) : 0;
    close(fd);
    if (count > 0 && strcmp(text, "ok") == 0) {
        return fine("started");
    }
    return fail(CODE_MASTER_START, "the master could not be started",
                count > 0 ? text_copy(text) : "it said nothing", NULL,
                text_format("less +G %s", text_shell(log)));
}

static char *log_path(const struct launch *launch)
{
    return text_format("%s/master.log", launch->job_dir);
}

static struct finding start_on(struct launch *launch, int listen_fd)
{
    char self[PATH_MAX] = {0};
    int ready[2];
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || pipe(ready) < 0) {
        return fail(CODE_MASTER_START, "the master could not be started", strerror(errno), NULL,
                    NULL);
    }
    struct list argv = master_words(launch, self);
    char *log = log_path(launch);
    int watch_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (watch_fd >= 0) {
        fcntl(watch_fd, F_SETFD, 0); /* the master keeps it over its exec */
    }
    fcntl(ready[0], F_SETFD, FD_CLOEXEC);
    setenv(versions_variable, agree_versions(launch), 1); /* for the master alone */
    fork_master(&argv, log, listen_fd, ready[1], watch_fd, getpid());
    unsetenv(versions_variable);
    close(ready[1]);
    close(listen_fd);
    if (watch_fd >= 0) {
        close(watch_fd);
    }
    struct finding finding = await_ready(ready[0], log);
    if (finding.level == LEVEL_OK) {
        return fine("started at %s", launch->master_text);
    }
    return finding;
}

struct finding master_process_start(struct launch *launch)
{
    struct finding finding = reach_name(launch);
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    int fd = machine_listen(&launch->master_address, true);
    if (fd == -EADDRNOTAVAIL) {
        return reach_master(launch); /* not our address: `solorun master` runs elsewhere */
    }
    if (fd == -EADDRINUSE) {
        finding = settle_taken_port(launch, false, &fd);
        if (finding.level == LEVEL_WARN && finding.code == CODE_UNREACHABLE) {
            message_note("the master at %s has ended meanwhile: this node starts another",
                         launch->master_text);
            fd = listen_again(launch);
        } else if (finding.level == LEVEL_FAIL || fd < 0) {
            return finding;
        }
    }
    return fd < 0 ? port_held(launch, -fd) : start_on(launch, fd);
}

/* ---- solorun master --------------------------------------------------------------------- */

static struct solo_master *running;

static void stop(int number)
{
    (void)number;
    solo_master_stop(running);
}

static int inherited(const char *name)
{
    uint64_t fd;
    const char *text = getenv(name);
    return text && number_count(text, 3, INT_MAX, &fd) ? (int)fd : -1;
}

/* Of a master that runs for months: what was written before is kept once, as master.log.1. */
static void bound_log(const char *path)
{
    struct stat status, there;
    if (fstat(STDERR_FILENO, &status) < 0 || status.st_size < LOG_BYTES_MAX) {
        return;
    }
    char former[PATH_MAX];
    snprintf(former, sizeof former, "%s.1", path);
    /* Another master of this job may have moved it: then that one's is gone on with, or made. */
    bool moved = stat(path, &there) < 0 || there.st_ino != status.st_ino;
    int fd =
        moved || rename(path, former) == 0 ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (fd < 0) { /* the folder is gone, or refuses: the limit holds nevertheless */
        (void)!ftruncate(STDERR_FILENO, 0);
        return;
    }
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static void log_to_stderr(void *context, enum solo_log_level level, const char *text)
{
    const char *path = context; /* NULL: stderr is its starter's */
    static const char *const names[] = {"debug", "info", "warning", "error"};
    char when[16];
    time_t now = time(NULL);
    struct tm local;
    strftime(when, sizeof when, "%H:%M:%S", localtime_r(&now, &local));
    fprintf(stderr, "%s %s: %s\n", when, names[level], text); /* it says whose it is itself */
    if (path) {
        bound_log(path);
    }
}

static struct finding bind_alone(struct launch *launch, int *fd)
{
    struct finding finding = reach_name(launch);
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    *fd = machine_listen(&launch->master_address, false);
    if (*fd == -EADDRINUSE) {
        return settle_taken_port(launch, true, fd);
    }
    if (*fd < 0) {
        return port_held(launch, -*fd);
    }
    return fine("bound");
}

/* What the nodes of the job are compared with before any has joined; NULL: nobody said it. */
static const char *told(const struct launch *launch, enum flag_id id)
{
    const char *text = launch->settings.of[id].value;
    return text ? agree_text(id, text) : NULL;
}

/* A fixed world begins with rank 0's values or not at all, as DDP does: what rank 0 loaded must not
 * get lost. A job whose master node 0 started expects node 0 soon; a master by hand expects nobody. */
static uint32_t first_ms(const struct launch *launch, bool by_node_0)
{
    if (launch->nnodes) {
        return UINT32_MAX;
    }
    uint32_t patience_ms = launch->timeout_ms / 2; /* of the others, who would give up */
    return !by_node_0 ? 0 : patience_ms < FIRST_MS ? patience_ms : FIRST_MS;
}

int master_process_run(struct launch *launch)
{
    int fd = inherited(listen_variable), ready = inherited(ready_variable);
    if (fd < 0) {
        struct finding finding = bind_alone(launch, &fd);
        message_end_if_failed(&finding);
    }
    struct solo_master_config config = {
        .size = sizeof config,
        .job_id = launch->job_id,
        .url = launch->master_text,
        .listen_fd = fd,
        .token = launch->token,
        .insecure = launch->insecure,
        .min_nodes = (uint32_t)launch->min_nodes,
        .expected_nodes = (uint32_t)launch->expected,
        .timeout_ms = launch->timeout_ms,
        .lease_ms = launch->lease_ms,
        .first_ms = first_ms(launch, ready >= 0),
        .events_path = launch->job_dir ? text_format("%s/events.jsonl", launch->job_dir) : NULL,
        .linger = launch->settings.of[FLAG_LINGER].value != NULL,
        .interval = told(launch, FLAG_SYNC_INTERVAL),
        .outer = told(launch, FLAG_OUTER),
        .codec = told(launch, FLAG_CODEC),
        .versions = getenv(versions_variable),
    };
    char *log = ready >= 0 && launch->job_dir ? log_path(launch) : NULL;
    solo_log_set(log_to_stderr, log, launch->verbose ? SOLO_LOG_DEBUG : SOLO_LOG_INFO);
    if (solo_master_open(&config, &running) < 0) {
        struct finding finding = fail(CODE_MASTER_START, "the master could not be started",
                                      text_copy(solo_error_text()), NULL, NULL);
        if (ready >= 0) {
            dprintf(ready, "%s", finding.why);
        }
        message_end_if_failed(&finding);
    }
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (ready >= 0) {
        dprintf(ready, "ok");
        close(ready);
    } else {
        message_note("master of job %s at %s, pid %d", launch->job_id, launch->master_text,
                     (int)getpid());
    }
    master_watch_begin(launch, running);
    int rc = solo_master_run(running);
    if (rc < 0) {
        message_note("master: %s", solo_error_text());
    }
    master_watch_end();
    signal(SIGTERM, SIG_IGN); /* there is nothing left to stop: `running` goes */
    signal(SIGINT, SIG_IGN);
    solo_master_close(running);
    return rc < 0 ? message_status(CODE_MASTER_START) : EXIT_SUCCESS;
}
