#include "conn_world.h"
#include "ipv6.h"
#include "os/conn_inside.h"

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
    if (has_ipv6()) {
        frames_go_both_ways("::1");
    }
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

/* Only memory of one host needs none. */
TEST(a_frame_without_checksum_is_refused_over_tcp)
{
    open_door("127.0.0.1", NULL, 0);
    struct raw_frame bad = {{0}};
    struct frame frame = {.type = FRAME_LINK, .flags = FRAME_UNCHECKED, .size = 100};
    frame_encode(&frame, bad.bytes);
    speak_raw(bad.bytes, sizeof bad.bytes);
    CHECK_EQ(refused_rc, SOLO_EPEER);
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

/* What nobody may read yet must not wake the loop again and again; an end is heard all the same. */
TEST(a_paused_connection_leaves_the_loop_asleep_and_hears_the_end)
{
    open_door("127.0.0.1", NULL, 0);
    connect_both(NULL);
    server.place_rc = SOLO_EAGAIN;
    CHECK_EQ(conn_send_copy(client.conn, &chunk_frame, "early", 5), 0);
    UNTIL(server.conn->paused);
    CHECK_EQ(conn_send_copy(client.conn, &chunk_frame, "later", 5), 0);
    UNTIL(!(server.conn->io.events & EPOLLIN));
    server.place_rc = 0;
    conn_resume(server.conn);
    UNTIL(server.frames == 3);
    CHECK(server.conn->io.events & EPOLLIN);
    server.place_rc = SOLO_EAGAIN;
    CHECK_EQ(conn_send_copy(client.conn, &chunk_frame, "last", 4), 0);
    UNTIL(server.conn->paused);
    conn_free(client.conn);
    client.conn = NULL;
    UNTIL(server.lost);
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
