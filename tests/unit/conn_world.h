/* conn_world.h - a door and a connection to it on one loop, for the tests of both. */
#ifndef SOLO_TESTS_CONN_WORLD_H
#define SOLO_TESTS_CONN_WORLD_H

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "check.h"
#include "dial_kit.h"
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

static inline void on_open(void *context, struct conn *conn)
{
    struct side *side = context;
    CHECK(conn_is_open(conn));
    side->opened++;
}

static inline int on_place(void *context, struct conn *conn, const struct frame *frame,
                           void **room_out)
{
    struct side *side = context;
    (void)conn;
    (void)frame;
    *room_out = side->room;
    return side->place_rc;
}

static inline int on_frame(void *context, struct conn *conn, const struct frame *frame,
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

static inline void on_sent(void *context, struct conn *conn, uint64_t tag)
{
    struct side *side = context;
    (void)conn;
    CHECK_EQ(tag, side->last_tag + 1);
    side->last_tag = tag;
    side->sent++;
}

static inline void on_lost(void *context, struct conn *conn, int rc, const char *text)
{
    struct side *side = context;
    (void)conn;
    side->lost++;
    side->rc = rc;
    snprintf(side->text, sizeof side->text, "%s", text);
}

static const struct conn_calls calls = {
    .open = on_open, .place = on_place, .frame = on_frame, .sent = on_sent, .lost = on_lost};

static inline int on_admit(void *context, struct conn *conn, const struct frame *first,
                           const void *payload)
{
    (void)context;
    if (first->type == FRAME_LEAVE) {
        return err_set(SOLO_EREFUSED, "nobody leaves who never came");
    }
    server.conn = conn;
    server.opened++;
    conn_adopt(conn, &calls, &server);
    return on_frame(&server, conn, first, payload);
}

static inline void on_refused(void *context, const char *peer, int rc, const char *text)
{
    (void)context;
    CHECK(peer[0]);
    refused++;
    refused_rc = rc;
    snprintf(refused_text, sizeof refused_text, "%s", text);
}

static const struct door_calls door_calls = {.admit = on_admit, .refused = on_refused};

static inline void open_door(const char *host, const char *token, uint64_t hello_us)
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

static inline struct conn_config dialer(const char *token)
{
    return (struct conn_config){.loop = loop,
                                .job_id = "job",
                                .token = token,
                                .roles = 1u << HELLO_DATA,
                                .calls = &calls,
                                .context = &client};
}

static inline void dial(const char *token)
{
    struct conn_config config = dialer(token);
    CHECK_EQ(conn_dial(&config, &here, &client.conn), 0);
}

static inline void close_door(void)
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

static inline void connect_both(const char *token)
{
    dial(token);
    UNTIL(client.opened || client.lost);
    CHECK_EQ(client.lost, 0);
    CHECK_EQ(conn_send_copy(client.conn, &hello_frame, "greetings", 9), 0);
    UNTIL(server.frames == 1);
    CHECK_EQ(server.size, 9);
    CHECK(memcmp(server.bytes, "greetings", 9) == 0);
}

static inline int knock(void)
{
    int fd = -1;
    enum solo_reach reach = SOLO_REACHED;
    CHECK_EQ(connect_to(&here, &fd, &reach), 0);
    return fd;
}

#endif
