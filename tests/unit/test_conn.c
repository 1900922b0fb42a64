#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/door.h"
#include "os/host.h"
#include "os/shm.h"
#include "os/sock.h"

/* One side of a connection and what happened to it. */
struct side {
    struct conn *conn;
    int opened, lost, rc, frames, sent, rooms;
    uint64_t last_tag;
    struct frame frame;
    uint8_t bytes[4096];
    size_t size;
    char text[SOLO_TEXT_MAX];
    uint8_t *room; /* for place; NULL: the connection's own buffer */
    int place_rc, free_on_frame;
};

static struct loop *loop;
static struct door *door;
static struct solo_url here;
static struct side server, client;
static int refused, refused_rc;
static char refused_text[SOLO_TEXT_MAX];

static void on_open(void *context, struct conn *conn)
{
    struct side *side = context;
    CHECK(conn_is_open(conn));
    side->opened++;
}

static int on_place(void *context, struct conn *conn, const struct frame *frame, void **room_out)
{
    struct side *side = context;
    (void)conn;
    (void)frame;
    *room_out = side->room;
    return side->place_rc;
}

static int on_frame(void *context, struct conn *conn, const struct frame *frame,
                    const void *payload)
{
    struct side *side = context;
    side->frames++;
    side->frame = *frame;
    side->size = frame->size < sizeof side->bytes ? frame->size : sizeof side->bytes;
    if (side->size) {
        memcpy(side->bytes, payload, side->size);
    }
    if (side->free_on_frame) {
        conn_free(conn);
        side->conn = NULL;
    }
    return 0;
}

static void on_sent(void *context, struct conn *conn, uint64_t tag)
{
    struct side *side = context;
    (void)conn;
    CHECK_EQ(tag, side->last_tag + 1);
    side->last_tag = tag;
    side->sent++;
}

static void on_lost(void *context, struct conn *conn, int rc, const char *text)
{
    struct side *side = context;
    (void)conn;
    side->lost++;
    side->rc = rc;
    snprintf(side->text, sizeof side->text, "%s", text);
}

static const struct conn_calls calls = {
    .open = on_open, .place = on_place, .frame = on_frame, .sent = on_sent, .lost = on_lost};

static int on_admit(void *context, struct conn *conn, const struct frame *first,
                    const void *payload)
{
    (void)context;
    if (first->type == FRAME_LEAVE) {
        return SOLO_EREFUSED;
    }
    server.conn = conn;
    server.opened++;
    conn_adopt(conn, &calls, &server);
    return on_frame(&server, conn, first, payload);
}

static void on_refused(void *context, const char *peer, int rc, const char *text)
{
    (void)context;
    CHECK(peer[0]);
    refused++;
    refused_rc = rc;
    snprintf(refused_text, sizeof refused_text, "%s", text);
}

static const struct door_calls door_calls = {.admit = on_admit, .refused = on_refused};

static void open_door(const char *host, const char *token, uint64_t hello_us)
{
    struct door_config config = {.loop = NULL,
                                 .job_id = "job",
                                 .token = token,
                                 .roles = 1u << HELLO_DATA | 1u << HELLO_CONTROL,
                                 .hello_us = hello_us,
                                 .calls = &door_calls};
    signal(SIGPIPE, SIG_IGN); /* the tests' own writes; the library never raises it */
    memset(&server, 0, sizeof server);
    memset(&client, 0, sizeof client);
    refused = refused_rc = 0;
    refused_text[0] = 0;
    CHECK_EQ(loop_new(&loop), 0);
    config.loop = loop;
    here = (struct solo_url){0};
    snprintf(here.host, sizeof here.host, "%s", host);
    CHECK_EQ(sock_listen(&here, &config.listen_fd, &here.port), 0);
    CHECK_EQ(door_open(&config, &door), 0);
    CHECK_EQ(door_port(door), here.port);
}

static struct conn_config dialer(const char *token)
{
    return (struct conn_config){.loop = loop,
                                .job_id = "job",
                                .token = token,
                                .roles = 1u << HELLO_DATA,
                                .calls = &calls,
                                .context = &client};
}

static void dial(const char *token)
{
    struct conn_config config = dialer(token);
    CHECK_EQ(conn_dial(&config, &here, &client.conn), 0);
}

static void close_door(void)
{
    conn_free(client.conn);
    conn_free(server.conn);
    door_close(door);
    loop_free(loop);
}

/* Turns until the condition holds; a hang ends the test. */
#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        uint64_t until_deadline = clock_us() + 20000000;                                           \
        while (!(condition)) {                                                                     \
            CHECK(clock_us() < until_deadline);                                                    \
            CHECK_EQ(loop_turn(loop, clock_us() + 50000), 0);                                      \
        }                                                                                          \
    } while (0)

static const struct frame hello_frame = {.type = FRAME_LINK, .chunk = 1};
static const struct frame chunk_frame = {.type = FRAME_DELTA, .round = 7, .attempt = 2};

static void connect_both(const char *token)
{
    dial(token);
    UNTIL(client.opened || client.lost);
    CHECK_EQ(client.lost, 0);
    CHECK_EQ(conn_send_copy(client.conn, &hello_frame, "greetings", 9), 0);
    UNTIL(server.frames == 1);
    CHECK_EQ(server.size, 9);
    CHECK(memcmp(server.bytes, "greetings", 9) == 0);
}

static void frames_go_both_ways(const char *host)
{
    open_door(host, "secret", 0);
    connect_both("secret");
    CHECK_EQ(conn_role(server.conn), HELLO_DATA);
    CHECK_EQ(conn_send(server.conn, &chunk_frame, "to the client", 13, 1), 0);
    CHECK_EQ(server.sent, 0); /* never from inside the call */
    CHECK_EQ(conn_waiting(server.conn), 1);
    UNTIL(client.frames == 1 && server.sent == 1);
    CHECK_EQ(client.frame.type, FRAME_DELTA);
    CHECK_EQ(client.frame.round, 7);
    CHECK_EQ(client.frame.attempt, 2);
    CHECK_EQ(client.size, 13);
    CHECK(memcmp(client.bytes, "to the client", 13) == 0);
    CHECK_EQ(conn_send(server.conn, &(struct frame){.type = FRAME_FETCH}, NULL, 0, 2), 0);
    UNTIL(client.frames == 2);
    CHECK_EQ(client.frame.size, 0);
    close_door();
}

TEST(frames_go_both_ways_over_ipv4)
{
    frames_go_both_ways("127.0.0.1");
}

TEST(frames_go_both_ways_over_ipv6)
{
    frames_go_both_ways("::1");
}

TEST(frames_go_both_ways_to_a_host_name)
{
    frames_go_both_ways("localhost");
}

TEST(many_frames_of_all_sizes_arrive_whole_and_in_order)
{
    enum { COUNT = 3000, SIZE_MAX_HERE = 3 << 20 };
    static uint8_t bytes[SIZE_MAX_HERE], room[SIZE_MAX_HERE];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    }
    open_door("127.0.0.1", "secret", 0);
    connect_both("secret");
    server.room = room;
    int posted = 0;
    while (server.frames < 1 + COUNT) {
        size_t size = posted % 500 == 499 ? SIZE_MAX_HERE : (size_t)posted * 37 % 40000;
        struct frame frame = chunk_frame;
        frame.chunk = (uint32_t)posted;
        if (posted < COUNT &&
            conn_send(client.conn, &frame, bytes, size, (uint64_t)posted + 1) == 0) {
            posted++;
            continue;
        }
        int before = server.frames;
        CHECK_EQ(loop_turn(loop, clock_us() + 5000000), 0);
        if (server.frames > before) {
            CHECK_EQ(server.frame.chunk, server.frames - 2);
            CHECK(memcmp(room, bytes, server.frame.size) == 0);
        }
    }
    CHECK_EQ(client.sent, COUNT);
    close_door();
}

/* ---- strangers ---------------------------------------------------------------------------- */

TEST(a_wrong_token_is_refused_on_both_sides)
{
    open_door("127.0.0.1", "secret", 0);
    dial("Secret");
    UNTIL(client.lost && refused);
    CHECK_EQ(client.rc, SOLO_EAUTH);
    CHECK_EQ(conn_reach(client.conn), SOLO_BAD_TOKEN);
    CHECK_EQ(server.opened, 0);
    CHECK_EQ(client.opened, 0);
    CHECK_EQ(door_pending(door), 0);
    close_door();
}

TEST(a_missing_token_is_refused_on_both_sides)
{
    open_door("127.0.0.1", "secret", 0);
    dial(NULL);
    UNTIL(client.lost && refused);
    CHECK_EQ(client.rc, SOLO_EAUTH);
    CHECK_EQ(refused_rc, SOLO_EAUTH);
    close_door();
}

TEST(another_job_is_told_apart)
{
    open_door("127.0.0.1", "secret", 0);
    struct conn_config config = dialer("secret");
    config.job_id = "another";
    CHECK_EQ(conn_dial(&config, &here, &client.conn), 0);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_EREFUSED);
    CHECK_EQ(conn_reach(client.conn), SOLO_OTHER_JOB);
    close_door();
}

TEST(without_a_token_only_loopback_is_dialed)
{
    open_door("127.0.0.1", NULL, 0);
    snprintf(here.host, sizeof here.host, "192.0.2.1");
    dial(NULL);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_EAUTH);
    CHECK_HAS(client.text, "--token_file");
    close_door();
}

TEST(without_a_token_only_loopback_is_let_in)
{
    struct solo_url other = {.host = "192.0.2.1", .port = 1};
    struct addr from;
    int pair[2];
    open_door("127.0.0.1", NULL, 0);
    CHECK_EQ(addr_numeric(&other, &from), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    struct conn_config config = dialer(NULL);
    CHECK_EQ(conn_accept(&config, pair[0], &from, &client.conn), SOLO_EAUTH);
    CHECK_HAS(solo_error_text(), "192.0.2.1");
    CHECK_EQ(write(pair[1], "x", 1), -1); /* it is closed */
    close(pair[1]);
    connect_both(NULL);
    close_door();
}

static int knock(void)
{
    int fd = -1;
    enum solo_reach reach;
    CHECK_EQ(sock_connect_blocking(&here, clock_us() + 5000000, &fd, &reach), 0);
    return fd;
}

TEST(garbage_zeros_and_port_scans_disturb_nobody)
{
    static const char zeros[64];
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    open_door("127.0.0.1", "secret", 0);
    int a = knock(), b = knock(), c = knock(), d = knock();
    CHECK_EQ(write(a, zeros, sizeof zeros), sizeof zeros);
    CHECK_EQ(write(b, http, sizeof http), sizeof http);
    close(c);
    CHECK_EQ(write(d, "solo-hi\n", 8), 8); /* right, then nothing: dies with its deadline */
    sock_reset(d);
    UNTIL(refused == 4);
    CHECK_EQ(door_pending(door), 0);
    connect_both("secret");
    close(a);
    close(b);
    close_door();
}

TEST(a_silent_connection_ends_at_its_deadline)
{
    open_door("127.0.0.1", "secret", 30000);
    int fd = knock();
    UNTIL(refused == 1);
    CHECK_EQ(refused_rc, SOLO_ETIMEDOUT);
    CHECK_EQ(door_pending(door), 0);
    close(fd);
    close_door();
}

TEST(a_connection_that_proves_the_token_and_then_is_silent_ends_too)
{
    open_door("127.0.0.1", "secret", 30000);
    dial("secret");
    UNTIL(client.opened && client.lost);
    CHECK_EQ(client.rc, SOLO_ECLOSED);
    CHECK_EQ(refused_rc, SOLO_ETIMEDOUT);
    close_door();
}

TEST(silent_connections_are_bounded_and_keep_no_honest_one_out)
{
    int fds[DOOR_PENDING_MAX + 20];
    open_door("127.0.0.1", "secret", 0);
    for (uint32_t i = 0; i < DOOR_PENDING_MAX + 20; i++) {
        fds[i] = knock();
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
    }
    UNTIL(refused == 20);
    CHECK_EQ(refused_rc, SOLO_ELIMIT);
    CHECK_EQ(door_pending(door), DOOR_PENDING_MAX);
    connect_both("secret");
    for (uint32_t i = 0; i < DOOR_PENDING_MAX + 20; i++) {
        close(fds[i]);
    }
    close_door();
}

TEST(a_first_frame_that_is_not_wanted_closes_the_connection)
{
    open_door("127.0.0.1", "secret", 0);
    dial("secret");
    UNTIL(client.opened);
    CHECK_EQ(conn_send_copy(client.conn, &(struct frame){.type = FRAME_LEAVE}, "", 0), 0);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_ECLOSED);
    close_door();
}

static void silent_listener(enum solo_reach expected, int rc, const char *says)
{
    struct conn_config config = dialer("secret");
    struct addr from;
    int listener = -1, fd = -1;
    here = (struct solo_url){.host = "127.0.0.1"};
    CHECK_EQ(sock_listen(&here, &listener, &here.port), 0);
    config.hello_us = 40000;
    client = (struct side){0};
    CHECK_EQ(conn_dial(&config, &here, &client.conn), 0);
    if (says) {
        UNTIL(sock_accept(listener, &fd, &from) == 0);
        CHECK_EQ(write(fd, says, strlen(says)), (ssize_t)strlen(says));
    }
    UNTIL(client.lost);
    CHECK_EQ(client.rc, rc);
    CHECK_EQ(conn_reach(client.conn), expected);
    conn_free(client.conn);
    client.conn = NULL;
    close(listener);
    close(fd);
}

TEST(a_stopped_peer_and_another_service_are_told_apart)
{
    open_door("127.0.0.1", "secret", 0);
    silent_listener(SOLO_NO_ANSWER, SOLO_ETIMEDOUT, NULL);
    silent_listener(SOLO_NOT_SOLO, SOLO_EPEER, "SSH-2.0-OpenSSH_9.2\r\n");
    close_door();
}

TEST(refused_and_unknown_hosts_are_told_apart)
{
    open_door("127.0.0.1", "secret", 0);
    struct solo_url gone = {.host = "127.0.0.1"};
    struct conn_config config = dialer("secret");
    int fd = -1;
    CHECK_EQ(sock_listen(&gone, &fd, &gone.port), 0);
    close(fd);
    CHECK_EQ(conn_dial(&config, &gone, &client.conn), 0);
    UNTIL(client.lost == 1);
    CHECK_EQ(client.rc, SOLO_EREFUSED);
    CHECK_EQ(conn_reach(client.conn), SOLO_CONN_REFUSED);
    conn_free(client.conn);
    snprintf(gone.host, sizeof gone.host, "no-such-host.invalid");
    CHECK_EQ(conn_dial(&config, &gone, &client.conn), 0);
    UNTIL(client.lost == 2);
    CHECK_EQ(conn_reach(client.conn), SOLO_NO_NAME);
    close_door();
}

/* ---- broken and slow peers ---------------------------------------------------------------- */

/* A peer whose handshake is right, then writes these bytes. */
static void speak_raw(const void *bytes, size_t size)
{
    uint8_t in[HELLO_BYTES_MAX];
    struct hello hello;
    struct hello_config config = {.token = NULL, .job_id = "job", .roles = 1u << HELLO_DATA};
    CHECK_EQ(host_random(config.nonce, sizeof config.nonce), 0);
    int fd = knock();
    hello_client(&hello, &config);
    while (!hello_over(&hello)) {
        size_t out_size;
        const uint8_t *out = hello_out(&hello, &out_size);
        if (out_size) {
            CHECK_EQ(write(fd, out, out_size), (ssize_t)out_size);
            hello_sent(&hello);
        }
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
        ssize_t count = read(fd, in, hello_want(&hello));
        CHECK_EQ(hello_feed(&hello, in, count > 0 ? (size_t)count : 0), 0);
    }
    CHECK_EQ(write(fd, bytes, size), (ssize_t)size);
    UNTIL(refused || server.lost || server.frames > 1);
    close(fd);
}

struct raw_frame {
    uint8_t bytes[FRAME_HEADER_BYTES + 100];
};

static struct raw_frame raw(enum frame_type type, uint32_t size)
{
    struct raw_frame raw = {{0}};
    memset(raw.bytes + FRAME_HEADER_BYTES, 'x', 100);
    struct frame frame = {
        .type = type, .size = size, .payload_crc = frame_crc(raw.bytes + FRAME_HEADER_BYTES, 100)};
    frame_encode(&frame, raw.bytes);
    return raw;
}

TEST(a_flipped_byte_in_header_or_payload_closes_the_connection)
{
    open_door("127.0.0.1", NULL, 0);
    struct raw_frame bad = raw(FRAME_LINK, 100);
    bad.bytes[20] ^= 1;
    speak_raw(bad.bytes, sizeof bad.bytes);
    CHECK_EQ(refused_rc, SOLO_ECORRUPT);
    refused = refused_rc = 0;
    bad = raw(FRAME_LINK, 100);
    bad.bytes[FRAME_HEADER_BYTES + 50] ^= 0x40;
    speak_raw(bad.bytes, sizeof bad.bytes);
    CHECK_EQ(refused_rc, SOLO_ECORRUPT);
    CHECK_EQ(server.frames, 0);
    close_door();
}

TEST(an_endless_frame_is_refused_from_its_header)
{
    open_door("127.0.0.1", NULL, 0);
    struct raw_frame bad = raw(FRAME_LINK, UINT32_MAX);
    speak_raw(bad.bytes, sizeof bad.bytes);
    CHECK_EQ(refused_rc, SOLO_EPEER);
    refused = 0;
    bad = raw(FRAME_GROUP, FRAME_GROUP_MAX); /* allowed by its type, but nobody gave it room */
    speak_raw(bad.bytes, sizeof bad.bytes);
    CHECK_EQ(refused_rc, SOLO_EPEER);
    close_door();
}

TEST(a_death_in_the_middle_of_a_frame_is_not_a_close_in_good_order)
{
    open_door("127.0.0.1", NULL, 0);
    struct raw_frame bytes = raw(FRAME_LINK, 100);
    uint8_t both[sizeof bytes.bytes + FRAME_HEADER_BYTES + 10];
    memcpy(both, bytes.bytes, sizeof bytes.bytes);
    memcpy(both + sizeof bytes.bytes, bytes.bytes, FRAME_HEADER_BYTES + 10);
    server.frames = 1; /* so that the first frame ends speak_raw */
    speak_raw(both, sizeof both);
    UNTIL(server.lost);
    CHECK_EQ(server.rc, SOLO_ESYS);
    CHECK_HAS(server.text, "middle of a frame");
    close_door();
}

TEST(a_reader_that_does_not_read_costs_bounded_memory)
{
    static uint8_t bytes[64 << 10];
    open_door("127.0.0.1", NULL, 0);
    connect_both(NULL);
    server.place_rc = SOLO_EAGAIN;
    int rc = 0, posted = 0;
    while (rc == 0) { /* copies up to their limit, however long it takes */
        rc = conn_send_copy(client.conn, &chunk_frame, bytes, sizeof bytes);
        posted += rc == 0;
        if (posted % 16 == 0) {
            CHECK_EQ(loop_turn(loop, clock_us()), 0);
        }
        CHECK(posted < 100000);
    }
    CHECK_EQ(rc, SOLO_EAGAIN);
    CHECK_EQ(server.frames, 1);
    server.place_rc = 0;
    conn_resume(server.conn);
    UNTIL(server.frames == 1 + posted);
    close_door();
}

TEST(a_payload_that_is_no_longer_wanted_is_diverted)
{
    static uint8_t bytes[4 << 20], room[4 << 20];
    memset(bytes, 1, sizeof bytes);
    open_door("127.0.0.1", NULL, 0);
    connect_both(NULL);
    server.room = room;
    CHECK_EQ(conn_send(client.conn, &chunk_frame, bytes, sizeof bytes, 1), 0);
    UNTIL(room[0] == 1 || server.frames == 2);
    if (server.frames == 1) { /* in the middle */
        conn_divert(server.conn, room, sizeof room);
        memset(room, 0, sizeof room);
        server.room = NULL;
        CHECK_EQ(conn_send_copy(client.conn, &hello_frame, "next", 4), 0);
        UNTIL(server.frames == 2);
        CHECK(memcmp(server.bytes, "next", 4) == 0);
        for (size_t i = 0; i < sizeof room; i++) {
            CHECK_EQ(room[i], 0);
        }
    }
    close_door();
}

TEST(a_frame_can_be_skipped)
{
    open_door("127.0.0.1", NULL, 0);
    connect_both(NULL);
    server.place_rc = 1;
    CHECK_EQ(conn_send_copy(client.conn, &chunk_frame, "unwanted", 8), 0);
    CHECK_EQ(conn_send_copy(client.conn, &(struct frame){.type = FRAME_FETCH}, "", 0), 0);
    UNTIL(server.frames == 2);
    CHECK_EQ(server.frame.type, FRAME_FETCH);
    close_door();
}

/* ---- ends --------------------------------------------------------------------------------- */

TEST(finishing_sends_what_waits_and_closes_both_sides_in_good_order)
{
    static uint8_t bytes[1 << 20];
    open_door("127.0.0.1", "secret", 0);
    connect_both("secret");
    for (uint64_t i = 0; i < 20; i++) {
        CHECK_EQ(conn_send(client.conn, &chunk_frame, bytes, 200000, i + 1), 0);
    }
    conn_finish(client.conn, clock_us() + 10000000);
    CHECK_EQ(conn_send(client.conn, &chunk_frame, bytes, 1, 21), SOLO_ECLOSED);
    UNTIL(server.lost);
    CHECK_EQ(server.frames, 21);
    CHECK_EQ(server.rc, SOLO_ECLOSED);
    conn_free(server.conn);
    server.conn = NULL;
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_ECLOSED);
    CHECK_EQ(client.sent, 20);
    close_door();
}

TEST(finishing_ends_at_its_deadline_when_the_other_side_does_not_close)
{
    open_door("127.0.0.1", "secret", 0);
    connect_both("secret");
    server.place_rc = SOLO_EAGAIN;
    conn_finish(client.conn, clock_us() + 5000);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_ECLOSED);
    close_door();
}

TEST(a_connection_may_be_freed_inside_its_own_callback)
{
    open_door("127.0.0.1", "secret", 0);
    connect_both("secret");
    server.free_on_frame = 1;
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(conn_send_copy(client.conn, &chunk_frame, "x", 1), 0);
    }
    UNTIL(client.lost);
    CHECK_EQ(server.frames, 2);
    close_door();
}

/* A child that connects, greets and waits to be killed. */
static pid_t spawn_client(bool local)
{
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct loop *own = NULL;
    CHECK_EQ(loop_new(&own), 0);
    loop = own; /* the parent's descriptors stay open here: only our own end matters */
    client = (struct side){0};
    struct conn_config config = dialer("secret");
    CHECK_EQ(local ? conn_dial_local(&config, here.port, &client.conn)
                   : conn_dial(&config, &here, &client.conn),
             0);
    UNTIL(client.opened);
    CHECK_EQ(conn_send_copy(client.conn, &hello_frame, "child", 5), 0);
    for (;;) {
        loop_turn(loop, CLOCK_NEVER);
    }
}

static void killed_peer(bool local)
{
    open_door("127.0.0.1", "secret", 0);
    pid_t child = spawn_client(local);
    UNTIL(server.frames == 1);
    CHECK_EQ(conn_is_shm(server.conn), local);
    kill(child, SIGKILL);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    UNTIL(server.lost); /* no deadline of ours has to pass: nothing is timed */
    CHECK(server.rc < 0);
    close_door();
}

TEST(a_killed_peer_is_noticed_over_tcp)
{
    killed_peer(false);
}

TEST(a_killed_peer_is_noticed_over_shared_memory)
{
    killed_peer(true);
}

TEST(the_door_of_a_port_on_this_host_is_reached_through_shared_memory)
{
    static uint8_t bytes[4 << 20], room[4 << 20];
    open_door("127.0.0.1", "secret", 0);
    struct conn_config config = dialer("secret");
    CHECK_EQ(conn_dial_local(&config, 1, &client.conn), SOLO_ENOENT);
    CHECK_EQ(conn_dial_local(&config, here.port, &client.conn), 0);
    UNTIL(client.opened);
    CHECK(conn_is_shm(client.conn));
    CHECK_EQ(conn_send_copy(client.conn, &hello_frame, "greetings", 9), 0);
    UNTIL(server.frames == 1);
    server.room = room;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 13 + i / 509);
    }
    for (uint64_t i = 1; i <= 10; i++) {
        memset(room, 0, sizeof room);
        CHECK_EQ(conn_send(client.conn, &chunk_frame, bytes, sizeof bytes, i), 0);
        UNTIL(server.frames == (int)i + 1);
        CHECK(memcmp(bytes, room, sizeof room) == 0);
    }
    conn_finish(client.conn, clock_us() + 5000000);
    UNTIL(server.lost);
    CHECK_EQ(server.rc, SOLO_ECLOSED);
    close_door();
}

TEST(a_wrong_token_is_refused_over_shared_memory_too)
{
    open_door("127.0.0.1", "secret", 0);
    struct conn_config config = dialer("wrong");
    CHECK_EQ(conn_dial_local(&config, here.port, &client.conn), 0);
    UNTIL(client.lost);
    CHECK_EQ(client.rc, SOLO_EAUTH);
    close_door();
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

TEST(a_thousand_connections_leak_no_descriptor)
{
    open_door("127.0.0.1", "secret", 0);
    int before = descriptors();
    for (int i = 0; i < 1000; i++) {
        struct conn_config config = dialer(i % 3 ? "secret" : "wrong");
        server = (struct side){0};
        client = (struct side){0};
        CHECK_EQ(i % 2 ? conn_dial(&config, &here, &client.conn)
                       : conn_dial_local(&config, here.port, &client.conn),
                 0);
        UNTIL(client.opened || client.lost);
        if (i % 5 && client.opened) {
            CHECK_EQ(conn_send_copy(client.conn, &hello_frame, "x", 1), 0);
            UNTIL(server.opened);
        }
        conn_free(client.conn);
        conn_free(server.conn);
    }
    client.conn = server.conn = NULL;
    UNTIL(door_pending(door) == 0);
    CHECK_EQ(descriptors(), before);
    close_door();
}
