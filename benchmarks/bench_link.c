/* One way of a link between two processes of this host: GB/s over loopback TCP with 1, 2 and 4
 * streams and over shared memory, each beside one memcpy of the same bytes on this machine.
 * The header's and payload's CRC-32C are part of it, as in every frame.
 *
 *     build/release/bench_link [--json]
 *     build/release/bench_link --serve PORT          the receiving side, for another host
 *     build/release/bench_link --to HOST:PORT [N]    the sending side; N streams, 0: chosen */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/door.h"
#include "os/link.h"
#include "os/sock.h"

enum { TOTAL = 64 << 20, CHUNK = 256 << 10, CHUNKS = TOTAL / CHUNK, REPEATS = 9 };

struct bench {
    struct loop *loop;
    struct door *door;
    struct link *link;
    struct solo_url here;
    int frames;
    bool lost;
};

static uint8_t *bytes;
static struct bench bench;

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "bench_link: %s\n", solo_error_text());
        exit(1);
    }
}

static int on_place(void *context, struct link *link, const struct frame *frame, void **room_out)
{
    (void)context;
    (void)link;
    *room_out = frame->type == FRAME_DELTA ? bytes + (size_t)frame->chunk * CHUNK : NULL;
    return 0;
}

static int on_frame(void *context, struct link *link, const struct frame *frame,
                    const void *payload)
{
    (void)context;
    (void)link;
    (void)frame;
    (void)payload;
    bench.frames++;
    return 0;
}

static void on_lost(void *context, struct link *link, int rc, const char *text)
{
    (void)context;
    (void)link;
    if (rc != SOLO_ECLOSED) {
        fprintf(stderr, "bench_link: %s\n", text);
    }
    bench.lost = true;
}

static const struct link_calls calls = {.place = on_place, .frame = on_frame, .lost = on_lost};
static const struct frame greeting = {.type = FRAME_LINK};

static struct link_config link_config(uint32_t streams, bool shm)
{
    return (struct link_config){.loop = bench.loop,
                                .job_id = "bench",
                                .insecure = true,
                                .role = HELLO_DATA,
                                .calls = &calls,
                                .streams = streams,
                                .shm = shm,
                                .greeting = &greeting};
}

static int on_admit(void *context, struct conn *conn, const struct frame *first,
                    const void *payload)
{
    struct link_config config = link_config(0, true);
    (void)context;
    (void)first;
    (void)payload;
    return bench.link ? link_add(bench.link, conn) : link_accept(&config, conn, &bench.link);
}

/* The receiving process: answers each 64 MiB with one small frame, until the sender is gone. */
static void receive_all(int listen_fd)
{
    static const struct door_calls door_calls = {.admit = on_admit};
    struct door_config config = {.job_id = "bench",
                                 .insecure = true,
                                 .roles = 1u << HELLO_DATA,
                                 .calls = &door_calls,
                                 .listen_fd = listen_fd};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(loop_new(&bench.loop));
    config.loop = bench.loop;
    must(door_open(&config, &bench.door));
    while (!bench.lost) {
        must(loop_turn(bench.loop, CLOCK_NEVER));
        if (bench.frames >= CHUNKS) {
            bench.frames -= CHUNKS;
            must(link_send(bench.link, &(struct frame){.type = FRAME_FETCH}, NULL, 0, 0));
        }
    }
}

static uint64_t send_once(void)
{
    uint64_t start_us = clock_us();
    bench.frames = 0;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct frame frame = {.type = FRAME_DELTA, .chunk = i};
        must(link_send(bench.link, &frame, bytes + (size_t)i * CHUNK, CHUNK, i));
    }
    while (bench.frames == 0 && !bench.lost) {
        must(loop_turn(bench.loop, CLOCK_NEVER));
    }
    return clock_us() - start_us;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double median_s(uint64_t *times_us)
{
    qsort(times_us, REPEATS, sizeof *times_us, by_value);
    return (double)times_us[REPEATS / 2] / 1e6;
}

static double memcpy_s(void)
{
    uint64_t times_us[REPEATS];
    uint8_t *copy = malloc(TOTAL);
    memset(copy, 1, TOTAL);
    for (int i = 0; i < REPEATS; i++) {
        uint64_t start_us = clock_us();
        memcpy(copy, bytes, TOTAL);
        times_us[i] = clock_us() - start_us;
        bytes[i] = copy[TOTAL - 1]; /* so that the copy is needed */
    }
    free(copy);
    return median_s(times_us);
}

static int serve(const char *port)
{
    struct solo_url url = {.host = "*", .port = (uint16_t)strtoul(port, NULL, 10)};
    int listen_fd = -1;
    must(sock_listen(&url, &listen_fd, &url.port));
    receive_all(listen_fd);
    return 0;
}

static int send_to(const char *url, const char *streams)
{
    must(solo_url_parse(url, &bench.here));
    must(loop_new(&bench.loop));
    struct link_config config = link_config((uint32_t)strtoul(streams, NULL, 10), false);
    must(link_dial(&config, &bench.here, &bench.link));
    for (int i = 0; i < REPEATS && !bench.lost; i++) {
        double time_s = (double)send_once() / 1e6;
        printf("%d MiB in %.2f s: %.0f Mbit/s, %u streams, round trip %.1f ms\n", TOTAL >> 20,
               time_s, TOTAL * 8 / time_s / 1e6, link_streams(bench.link),
               link_rtt_us(bench.link) / 1e3);
        fflush(stdout);
    }
    link_free(bench.link);
    loop_free(bench.loop);
    return bench.lost;
}

static double link_s(uint32_t streams, bool shm)
{
    uint64_t times_us[REPEATS];
    int listen_fd = -1;
    bench = (struct bench){.here = {.host = "127.0.0.1"}};
    must(sock_listen(&bench.here, &listen_fd, &bench.here.port));
    int childs_fd = dup(listen_fd); /* fork.h takes the one it knows from the child */
    pid_t child = fork();
    if (child == 0) {
        receive_all(childs_fd);
        _exit(0);
    }
    close(childs_fd);
    close(listen_fd);
    usleep(100000); /* the other side's door opens: nothing of this is timed */
    must(loop_new(&bench.loop));
    struct link_config config = link_config(streams, shm);
    must(link_dial(&config, &bench.here, &bench.link));
    send_once(); /* opens the streams, touches the pages */
    for (int i = 0; i < REPEATS; i++) {
        times_us[i] = send_once();
    }
    if (link_is_shm(bench.link) != shm || bench.lost) {
        fprintf(stderr, "bench_link: not the transport that was asked for\n");
        exit(1);
    }
    link_free(bench.link);
    loop_free(bench.loop);
    waitpid(child, NULL, 0);
    return median_s(times_us);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t streams;
        bool shm;
    } rows[] = {{"tcp, 1 stream", 1, false},
                {"tcp, 2 streams", 2, false},
                {"tcp, 4 streams", 4, false},
                {"shared memory", 1, true}};
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    bytes = malloc(TOTAL);
    memset(bytes, 1, TOTAL);
    if (argc > 2 && strcmp(argv[1], "--serve") == 0) {
        return serve(argv[2]);
    }
    if (argc > 2 && strcmp(argv[1], "--to") == 0) {
        return send_to(argv[2], argc > 3 ? argv[3] : "0");
    }
    double copy_s = memcpy_s();
    if (json) {
        printf("{\"bytes\": %d, \"memcpy_GB_s\": %.3f", TOTAL, TOTAL / copy_s / 1e9);
    } else {
        printf("%d MiB one way, two processes, median of %d; memcpy of the same: %.2f GB/s\n",
               TOTAL >> 20, REPEATS, TOTAL / copy_s / 1e9);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double time_s = link_s(rows[i].streams, rows[i].shm);
        printf(json ? ", \"%s\": {\"GB_s\": %.3f, \"memcpys\": %.3f}"
                    : "%-16s %6.2f GB/s, the time of %5.2f memcpys\n",
               rows[i].name, TOTAL / time_s / 1e9, time_s / copy_s);
    }
    printf(json ? "}\n" : "");
    return 0;
}
