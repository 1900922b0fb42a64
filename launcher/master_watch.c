#include "master_watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "number.h"

const char master_watch_variable[] = "SOLO_MASTER_WATCH";

enum {
    adopt_signal = SIGURG, /* ignored by who knows nothing of it */
    LOOK_MS = 500,         /* how often the end and the members are looked at */
    ASK_MS = 2000,
};

static struct {
    pthread_t thread;
    atomic_bool ended;
    atomic_int adopter; /* pid of a node 0 that came back; 0: none since it was looked at */
    bool runs;
    int pidfd;
    const struct launch *launch;
    struct solo_master *master;
} watch;

static bool node_lives(void)
{
    struct pollfd ended = {.fd = watch.pidfd, .events = POLLIN};
    return poll(&ended, 1, LOOK_MS) == 0;
}

static bool has_members(void)
{
    struct solo_status status = {.size = sizeof status};
    const struct launch *launch = watch.launch;
    int rc = solo_status_get(launch->master_text, launch->job_id, launch->token, ASK_MS, &status);
    return rc == 0 && status.member_count > 0;
}

static void adopt(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (info->si_code == SI_QUEUE) {
        watch.adopter = info->si_value.sival_int;
    }
}

static bool is_adopted(void)
{
    int pid = atomic_exchange(&watch.adopter, 0);
    int fd = pid ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (fd < 0) {
        return false;
    }
    close(watch.pidfd);
    watch.pidfd = fd;
    return true;
}

/* Until the node has ended and a lease went by without members and without another node 0. */
static void wait_for_the_end(void)
{
    uint32_t alone_ms = 0;
    while (!watch.ended) {
        if (is_adopted() || node_lives()) {
            alone_ms = 0;
            continue;
        }
        if (alone_ms >= watch.launch->lease_ms) {
            return;
        }
        usleep(LOOK_MS * 1000);
        alone_ms = has_members() ? 0 : alone_ms + LOOK_MS;
    }
}

static void *look(void *argument)
{
    (void)argument;
    wait_for_the_end();
    if (!watch.ended) {
        message_note("node 0 is gone and nobody is left: the master ends");
        solo_master_stop(watch.master);
    }
    return NULL;
}

static bool read_variable(const char *text, uint64_t *pidfd, uint64_t *pid)
{
    return number_next(&text, 10, pidfd) && *text++ == ':' && number_next(&text, 10, pid);
}

void master_watch_begin(const struct launch *launch, struct solo_master *master)
{
    const char *text = getenv(master_watch_variable);
    uint64_t pidfd, pid;
    if (!text || !read_variable(text, &pidfd, &pid)) {
        return;
    }
    watch.pidfd = (int)pidfd;
    watch.launch = launch;
    watch.master = master;
    struct sigaction action = {.sa_sigaction = adopt, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(adopt_signal, &action, NULL);
    watch.runs = pthread_create(&watch.thread, NULL, look, NULL) == 0;
}

void master_watch_end(void)
{
    watch.ended = true;
    if (watch.runs) {
        pthread_join(watch.thread, NULL);
    }
}

void master_watch_adopt(pid_t master)
{
    (void)sigqueue(master, adopt_signal, (union sigval){.sival_int = getpid()});
}

bool master_watch_is_abandoned(pid_t master)
{
    enum { ENVIRONMENT_BYTES = 256 * 1024 };
    char *text = text_read_file(text_format("/proc/%d/environ", (int)master), ENVIRONMENT_BYTES);
    char *mark = text_format("%s=", master_watch_variable);
    for (char *at = text; at && *at; at += strlen(at) + 1) {
        uint64_t pidfd, pid;
        if (text_starts(at, mark) && read_variable(at + strlen(mark), &pidfd, &pid)) {
            return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
        }
    }
    return false;
}
