#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ipv6.h"
#include "link_world.h"
#include "os/link_inside.h"

static void send_chunks(struct side *from)
{
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct frame frame = {.type = FRAME_DELTA, .chunk = i};
        CHECK_EQ(link_send(from->link, &frame, source + i, CHUNK, i), 0);
    }
}

static void every_frame_once(const char *host, uint32_t streams, bool shm, uint32_t expected)
{
    open_door(host);
    dial(streams, shm);
    send_chunks(&client); /* before it is open: they wait */
    CHECK_EQ(client.sent, 0);
    UNTIL(server.frames == CHUNKS && client.sent == CHUNKS);
    check_chunks(&server);
    CHECK_EQ(client.opened, 1);
    CHECK_EQ(link_is_shm(client.link), shm);
    CHECK_EQ(link_is_shm(server.link), shm);
    CHECK_EQ(link_streams(client.link), expected);
    CHECK_EQ(greetings, expected);
    memset(target, 0, sizeof target);
    send_chunks(&server); /* and the other way, on the same streams */
    UNTIL(client.frames == CHUNKS && server.sent == CHUNKS);
    check_chunks(&client);
    CHECK(link_received_bytes(server.link) > (uint64_t)CHUNK * CHUNKS);
    close_door();
}

TEST(every_frame_arrives_once_over_one_stream)
{
    every_frame_once("127.0.0.1", 1, false, 1);
}

TEST(every_frame_arrives_once_over_four_streams)
{
    every_frame_once("127.0.0.1", 4, false, 4);
}

TEST(every_frame_arrives_once_over_four_ipv6_streams)
{
    if (has_ipv6()) {
        every_frame_once("::1", 4, false, 4);
    }
}

TEST(every_frame_arrives_once_over_shared_memory)
{
    every_frame_once("127.0.0.1", 4, true, 1);
}

TEST(streams_are_opened_only_when_frames_wait)
{
    open_door("127.0.0.1");
    dial(4, false);
    UNTIL(client.opened && server.link);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
    }
    CHECK_EQ(link_streams(client.link), 1);
    send_chunks(&client);
    UNTIL(server.frames == CHUNKS && link_streams(client.link) == 4);
    close_door();
}

/* No frame lies in a socket whole then. */
static void bound_sockets(const struct link *link)
{
    static const int bytes = 64 << 10;
    for (uint32_t i = 0; i < LINK_STREAMS_MAX; i++) {
        if (link->streams[i].open) {
            int fd = link->streams[i].conn->transport.fd;
            CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
            CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
        }
    }
}

/* Each stream is in the middle of its frame when the other begins. */
TEST(a_frame_that_comes_twice_at_once_is_noticed_while_it_comes)
{
    open_door("127.0.0.1");
    dial(2, false);
    send_chunks(&client);
    UNTIL(server.frames == CHUNKS && link_streams(client.link) == 2);
    CHECK_EQ(server.twice, 0);
    bound_sockets(client.link);
    bound_sockets(server.link);
    struct frame frame = {.type = FRAME_DELTA};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(link_send(client.link, &frame, target[100], FRAME_CHUNK_MAX, 0), 0);
    }
    UNTIL(server.frames == CHUNKS + 2);
    CHECK_EQ(server.twice, 1);
    close_door();
}

TEST(without_a_local_door_on_that_port_tcp_is_taken)
{
    char name[CONN_LOCAL_NAME_MAX];
    open_door("127.0.0.1");
    door_close(door);
    struct door_config config = {.loop = loop,
                                 .job_id = "job",
                                 .token = "secret",
                                 .roles = 1u << HELLO_DATA,
                                 .calls = &door_calls};
    CHECK_EQ(sock_listen(&here, &config.listen_fd, &here.port), 0);
    int other = -1; /* holds the local name, so that the door has none, and speaks nonsense */
    conn_local_name(here.port, name);
    CHECK_EQ(shm_listen(name, &other), 0);
    CHECK_EQ(door_open(&config, &door), 0);
    dial(1, true);
    int fd = -1;
    UNTIL(shm_accept(other, &fd) == 0);
    close(fd);
    UNTIL(client.opened);
    CHECK(!link_is_shm(client.link));
    close(other);
    close_door();
}

TEST(paused_frames_arrive_after_resume)
{
    open_door("127.0.0.1");
    dial(4, false);
    server.place_rc = SOLO_EAGAIN;
    send_chunks(&client);
    UNTIL(server.link);
    for (int i = 0; i < 50; i++) {
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
    }
    CHECK_EQ(server.frames, 0);
    CHECK(client.sent < CHUNKS);
    server.place_rc = 0;
    link_resume(server.link);
    UNTIL(server.frames == CHUNKS);
    check_chunks(&server);
    close_door();
}

/* One stream stands still, as on a path that loses everything: the others carry the rest. */
TEST(a_stream_that_stands_still_keeps_only_the_frames_it_had_begun)
{
    enum { KEPT_MAX = 24 }; /* what a stream and its socket's two buffers hold, with room */
    open_door("127.0.0.1");
    dial(4, false);
    server_stalls_at = 3;
    send_chunks(&client);
    UNTIL(server.frames >= CHUNKS - KEPT_MAX);
    CHECK_EQ(server.seen[3], 0);
    CHECK_EQ(link_streams(client.link), 4);
    server_stalls_at = -1;
    link_resume(server.link);
    UNTIL(server.frames == CHUNKS);
    check_chunks(&server);
    close_door();
}

/* Whoever gave the memory may write over it at once; the link goes on. */
static void what_is_forgotten_is_not_borrowed(bool shm)
{
    static uint8_t before[sizeof source], last[CHUNK];
    open_door("127.0.0.1");
    dial(2, shm);
    server.place_rc = SOLO_EAGAIN;
    send_chunks(&client);
    UNTIL(server.link);
    for (int i = 0; i < 50; i++) {
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
    }
    int sent = client.sent;
    memcpy(before, source, sizeof source);
    CHECK_EQ(link_forget(client.link, source, sizeof source), 0);
    memset(source, 0xee, sizeof source);
    struct frame frame = {.type = FRAME_DELTA, .chunk = CHUNKS - 1};
    CHECK_EQ(link_send(client.link, &frame, last, CHUNK, CHUNKS - 1), 0);
    server.place_rc = 0;
    link_resume(server.link);
    UNTIL(client.sent == sent + 1 && server.seen[CHUNKS - 1]);
    CHECK_EQ(client.lost + server.lost, 0);
    CHECK(server.frames < CHUNKS);
    for (uint32_t i = 0; i < CHUNKS - 1; i++) {
        CHECK(server.seen[i] <= 1);
        CHECK(!server.seen[i] || memcmp(target[i], before + i, CHUNK) == 0);
    }
    memcpy(source, before, sizeof source);
    close_door();
}

TEST(what_is_forgotten_is_not_borrowed_any_more_over_tcp)
{
    what_is_forgotten_is_not_borrowed(false);
}

TEST(what_is_forgotten_is_not_borrowed_any_more_over_shared_memory)
{
    what_is_forgotten_is_not_borrowed(true);
}

TEST(a_full_link_says_so_and_keeps_what_it_took)
{
    open_door("127.0.0.1");
    dial(1, false);
    struct frame frame = {.type = FRAME_FETCH};
    uint32_t taken = 0;
    int rc;
    while ((rc = link_send(client.link, &frame, NULL, 0, 0)) == 0) {
        taken++;
    }
    CHECK_EQ(rc, SOLO_EAGAIN);
    CHECK_EQ(taken, LINK_SENDS_MAX);
    UNTIL(server.frames == (int)taken);
    close_door();
}

TEST(finishing_sends_what_waits_over_all_streams)
{
    open_door("127.0.0.1");
    dial(4, false);
    UNTIL(client.opened);
    send_chunks(&client);
    link_finish(client.link, clock_us() + 10000000);
    CHECK_EQ(link_send(client.link, &(struct frame){.type = FRAME_FETCH}, NULL, 0, 0),
             SOLO_ECLOSED);
    UNTIL(server.lost);
    CHECK_EQ(server.rc, SOLO_ECLOSED);
    CHECK_EQ(server.frames, CHUNKS);
    check_chunks(&server);
    link_free(server.link);
    server.link = NULL;
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_ECLOSED);
    close_door();
}

/* One of several streams breaks while frames wait: nothing is lost in silence. */
static void break_a_stream(void)
{
    for (int fd = 3; fd < 256; fd++) { /* any TCP socket of ours that is connected */
        struct addr remote = {.size = sizeof remote.bytes};
        if (getpeername(fd, (struct sockaddr *)&remote.bytes, &remote.size) == 0 &&
            addr_port(&remote) == here.port) {
            shutdown(fd, SHUT_RDWR);
            return;
        }
    }
    CHECK(false);
}

TEST(the_loss_of_one_stream_is_the_loss_of_the_link_on_both_sides)
{
    open_door("127.0.0.1");
    dial(4, false);
    server.place_rc = SOLO_EAGAIN; /* so that all streams hold frames */
    send_chunks(&client);
    UNTIL(link_streams(client.link) == 4 && greetings == 4);
    break_a_stream();
    UNTIL(client.lost && server.lost);
    CHECK(client.rc < 0 && server.rc < 0);
    CHECK_EQ(client.lost, 1);
    CHECK_EQ(server.lost, 1);
    CHECK_EQ(link_streams(client.link), 0);
    CHECK_EQ(link_send(client.link, &(struct frame){.type = FRAME_FETCH}, NULL, 0, 0),
             SOLO_ECLOSED);
    close_door();
}

TEST(a_link_that_cannot_be_made_says_why)
{
    open_door("127.0.0.1");
    struct solo_url gone = {.host = "127.0.0.1"};
    int fd = -1;
    CHECK_EQ(sock_listen(&gone, &fd, &gone.port), 0);
    close(fd);
    struct link_config config = config_of(&client, 0, true);
    CHECK_EQ(link_dial(&config, &gone, &client.link), 0);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_EREFUSED);
    CHECK_HAS(client.text, "nothing listens");
    close_door();
}

static pid_t spawn_sender(bool shm)
{
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK_EQ(loop_new(&loop), 0);
    dial(4, shm);
    send_chunks(&client);
    for (;;) {
        loop_turn(loop, CLOCK_NEVER);
    }
}

static void killed_sender(bool shm)
{
    open_door("127.0.0.1");
    pid_t child = spawn_sender(shm);
    UNTIL(server.frames >= 3);
    kill(child, SIGKILL);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    UNTIL(server.lost);
    CHECK_EQ(server.lost, 1);
    for (uint32_t i = 0; i < CHUNKS; i++) { /* what was told as whole is whole */
        CHECK(server.seen[i] <= 1);
        CHECK(!server.seen[i] || memcmp(target[i], source + i, CHUNK) == 0);
    }
    close_door();
}

TEST(a_killed_peer_loses_the_link_over_tcp)
{
    killed_sender(false);
}

TEST(a_killed_peer_loses_the_link_over_shared_memory)
{
    killed_sender(true);
}

static int freed;

static void on_lost_free(void *context, struct link *link, int rc, const char *text)
{
    struct side *side = context;
    (void)rc;
    (void)text;
    side->link = NULL;
    freed++;
    link_free(link);
}

TEST(a_link_may_be_freed_in_its_last_callback)
{
    static const struct link_calls freeing = {.frame = on_frame, .lost = on_lost_free};
    open_door("127.0.0.1");
    struct link_config config = config_of(&client, 4, true);
    config.calls = &freeing;
    CHECK_EQ(link_dial(&config, &here, &client.link), 0);
    UNTIL(server.link);
    link_free(server.link);
    server.link = NULL;
    UNTIL(freed == 1);
    close_door();
}
