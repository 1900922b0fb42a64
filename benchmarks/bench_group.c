/* Small calls of a group whose two ranks are on two hosts (two processes of this one, over loopback
 * TCP): an all_reduce of 4 bytes and a message of 4 bytes there and back, beside the same over
 * bare sockets, in turns of one run.
 *
 *     build/release/bench_group           each rank on a core of its own, if there are two
 *     build/release/bench_group free      wherever the kernel puts them
 *     build/release/bench_group free 3    row 3 alone, counted from 0 (for perf and strace) */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/clock.h"
#include "solo_group.h"

enum { ROUNDS = 9, CALLS = 2000 };

static struct bench {
    int rank;
    int bare; /* the bare socket to the other rank */
    struct solo_group *group;
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_group: %s: %s, %s\n", what, solo_error_text(), strerror(errno));
        exit(1);
    }
}

/* ---- what is measured --------------------------------------------------------------------------- */

static void bare_send(void)
{
    uint32_t value = 1;
    must(send(bench.bare, &value, sizeof value, MSG_NOSIGNAL) == sizeof value, "send");
}

static void bare_receive(void)
{
    uint32_t value;
    must(recv(bench.bare, &value, sizeof value, MSG_WAITALL) == sizeof value, "recv");
}

static void bare_back(void)
{
    if (bench.rank == 0) {
        bare_send();
        bare_receive();
    } else {
        bare_receive();
        bare_send();
    }
}

/* What an all_reduce of two ranks has to do at least. */
static void bare_both(void)
{
    bare_send();
    bare_receive();
}

static _Atomic int ended;

static void on_done(void *context, int rc, const char *text, uint32_t source)
{
    (void)context;
    (void)source;
    must(rc == 0, text);
    ended = 1;
}

static int is_ended(void *context)
{
    (void)context;
    return ended;
}

static void message(bool receive)
{
    static float value;
    uint32_t other = 1 - (uint32_t)bench.rank;
    ended = 0;
    int rc = receive ? solo_group_receive(bench.group, other, 0, &value, 4, 0, on_done, NULL)
                     : solo_group_send(bench.group, other, 0, &value, 4, 0, on_done, NULL);
    must(rc == 0, "message");
    while (!ended) {
        solo_group_help(bench.group, is_ended, NULL);
    }
}

static void message_back(void)
{
    message(bench.rank == 1);
    message(bench.rank == 0);
}

static void allreduce(void)
{
    static float value;
    struct solo_part part = {&value, 1};
    struct solo_op op = {.kind = SOLO_OP_ALLREDUCE, .dtype = SOLO_F32};
    op.in = op.out = &part;
    op.in_count = op.out_count = 1;
    must(solo_group_run(bench.group, &op, 1, 0) == 0, "all_reduce");
}

static const struct {
    const char *name;
    void (*call)(void);
    int beside; /* which row it is compared with; -1: none */
} rows[] = {
    {"bare sockets, 4 B there and back", bare_back, -1},
    {"message of 4 B there and back", message_back, 0},
    {"bare sockets, 4 B both ways at once", bare_both, -1},
    {"all_reduce of 4 B", allreduce, 2},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- the two ranks -------------------------------------------------------------------------------- */

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    must(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

static void meet(int pipe_out, int pipe_in)
{
    char cards[2][SOLO_CARD_MAX] = {{0}};
    char host[8];
    snprintf(host, sizeof host, "host-%d", bench.rank);
    struct solo_group_config config = {.size = sizeof config,
                                       .rank = (uint32_t)bench.rank,
                                       .world = 2,
                                       .timeout_ms = 30000,
                                       .host_id = host,
                                       .name = "bench"};
    must(solo_group_prepare(&config, &bench.group, cards[bench.rank]) == 0, "prepare");
    must(write(pipe_out, cards[bench.rank], SOLO_CARD_MAX) == SOLO_CARD_MAX, "write");
    must(read(pipe_in, cards[1 - bench.rank], SOLO_CARD_MAX) == SOLO_CARD_MAX, "read");
    const char *all[2] = {cards[0], cards[1]};
    must(solo_group_connect(bench.group, all, 0) == 0, "connect");
}

static void bare_pair(int out[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    must(bind(listener, (struct sockaddr *)&at, size) == 0 && listen(listener, 1) == 0 &&
             getsockname(listener, (struct sockaddr *)&at, &size) == 0,
         "listen");
    out[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(out[0], (struct sockaddr *)&at, size) == 0, "connect");
    out[1] = accept(listener, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        setsockopt(out[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    close(listener);
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void measure(int first, int end, double us[ROWS])
{
    static double seen[ROWS][ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int row = first; row < end; row++) {
            for (int i = 0; i < 10; i++) {
                rows[row].call();
            }
            uint64_t begun_us = clock_us();
            for (int i = 0; i < CALLS; i++) {
                rows[row].call();
            }
            seen[row][round] = (double)(clock_us() - begun_us) / CALLS;
        }
    }
    for (int row = first; row < end; row++) {
        qsort(seen[row], ROUNDS, sizeof(double), by_value);
        us[row] = seen[row][ROUNDS / 2];
    }
}

static void tell(int first, int end, const double us[ROWS], const char *place)
{
    for (int row = first; row < end; row++) {
        printf("%-40s %-12s %7.1f us", rows[row].name, place, us[row]);
        if (rows[row].beside >= first) {
            printf("  %5.2f x bare sockets", us[row] / us[rows[row].beside]);
        }
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    bool free_cores =
        (argc > 1 && strcmp(argv[1], "free") == 0) || sysconf(_SC_NPROCESSORS_ONLN) < 2;
    int only = argc > 2 ? atoi(argv[2]) : -1;
    bool one = only >= 0 && only < ROWS;
    int first = one ? only : 0, end = one ? only + 1 : ROWS;
    int bare[2], there[2], back[2];
    bare_pair(bare);
    must(pipe(there) == 0 && pipe(back) == 0, "pipe");
    pid_t child = fork();
    must(child >= 0, "fork");
    bench.rank = child == 0;
    bench.bare = bare[bench.rank];
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    if (!free_cores) {
        pin(bench.rank);
    }
    meet(bench.rank ? back[1] : there[1], bench.rank ? there[0] : back[0]);
    double us[ROWS];
    measure(first, end, us);
    if (bench.rank == 0) {
        tell(first, end, us, free_cores ? "free" : "a core each");
    }
    solo_group_close(bench.group);
    if (child > 0) {
        int status;
        waitpid(child, &status, 0);
    }
    return 0;
}
