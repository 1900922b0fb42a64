/* link_world.h - two links of one process, a door between them, and chunks to send. */
#ifndef TESTS_LINK_WORLD_H
#define TESTS_LINK_WORLD_H

#include "check.h"
#include "os/conn_inside.h"
#include "os/door.h"
#include "os/link.h"
#include "os/sock.h"

enum { CHUNK = 256 << 10, CHUNKS = 200 };

struct side {
    struct link *link;
    int opened, lost, rc, frames, sent, rooms, twice;
    uint8_t seen[CHUNKS]; /* how often a chunk came */
    uint8_t was_sent[CHUNKS];
    int place_rc;
    char text[SOLO_TEXT_MAX];
};

static struct loop *loop;
static struct door *door;
static struct solo_url here;
static struct side server, client;
static uint32_t streams_here;
static int greetings;
static int server_stalls_at = -1; /* a chunk that is not placed */
static uint8_t source[CHUNK + CHUNKS], target[CHUNKS][CHUNK];

static void on_open(void *context, struct link *link)
{
    struct side *side = context;
    CHECK(link_is_open(link));
    side->opened++;
}

static int on_place(void *context, struct link *link, const struct frame *frame, void **room_out)
{
    struct side *side = context;
    side->twice += link_arrives(link, frame);
    if (frame->type == FRAME_DELTA) {
        *room_out = target[frame->chunk];
    }
    bool stalls = side == &server && server_stalls_at >= 0 && frame->type == FRAME_DELTA &&
                  frame->chunk == (uint32_t)server_stalls_at;
    return stalls ? SOLO_EAGAIN : side->place_rc;
}

static int on_frame(void *context, struct link *link, const struct frame *frame,
                    const void *payload)
{
    struct side *side = context;
    (void)link;
    side->frames++;
    if (frame->type == FRAME_DELTA) {
        side->seen[frame->chunk]++;
    }
    if (side->place_rc == CONN_IN_PLACE) {
        CHECK(payload != target[frame->chunk]);
        memcpy(target[frame->chunk], payload, frame->size);
    }
    return 0;
}

static void on_sent(void *context, struct link *link, uint64_t tag)
{
    struct side *side = context;
    (void)link;
    side->sent++;
    side->was_sent[tag]++;
}

static void on_room(void *context, struct link *link)
{
    struct side *side = context;
    (void)link;
    side->rooms++;
}

static void on_lost(void *context, struct link *link, int rc, const char *text)
{
    struct side *side = context;
    (void)link;
    side->lost++;
    side->rc = rc;
    snprintf(side->text, sizeof side->text, "%s", text);
}

static const struct link_calls calls = {.open = on_open,
                                        .place = on_place,
                                        .frame = on_frame,
                                        .sent = on_sent,
                                        .room = on_room,
                                        .lost = on_lost};

static struct link_config config_of(struct side *side, uint32_t streams, bool shm)
{
    static const struct frame greeting = {.type = FRAME_LINK};
    return (struct link_config){.loop = loop,
                                .job_id = "job",
                                .token = "secret",
                                .role = HELLO_DATA,
                                .calls = &calls,
                                .context = side,
                                .streams = streams,
                                .shm = shm,
                                .greeting = &greeting,
                                .greeting_payload = "me",
                                .greeting_size = 2};
}

static int on_admit(void *context, struct conn *conn, const struct frame *first,
                    const void *payload)
{
    (void)context;
    CHECK_EQ(first->type, FRAME_LINK);
    CHECK(memcmp(payload, "me", 2) == 0);
    greetings++;
    struct link_config config = config_of(&server, 0, true);
    return server.link ? link_add(server.link, conn) : link_accept(&config, conn, &server.link);
}

static const struct door_calls door_calls = {.admit = on_admit};

#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        uint64_t until_deadline = clock_us() + 20000000;                                           \
        while (!(condition)) {                                                                     \
            CHECK(clock_us() < until_deadline);                                                    \
            CHECK_EQ(loop_turn(loop, clock_us() + 50000), 0);                                      \
        }                                                                                          \
    } while (0)

static void open_door(const char *host)
{
    struct door_config config = {
        .job_id = "job", .token = "secret", .roles = 1u << HELLO_DATA, .calls = &door_calls};
    memset(&server, 0, sizeof server);
    memset(&client, 0, sizeof client);
    memset(target, 0, sizeof target);
    greetings = 0;
    for (size_t i = 0; i < sizeof source; i++) {
        source[i] = (uint8_t)(i * 31 + i / 257);
    }
    CHECK_EQ(loop_new(&loop), 0);
    config.loop = loop;
    here = (struct solo_url){0};
    snprintf(here.host, sizeof here.host, "%s", host);
    CHECK_EQ(sock_listen(&here, &config.listen_fd, &here.port), 0);
    CHECK_EQ(door_open(&config, &door), 0);
}

static void dial(uint32_t streams, bool shm)
{
    struct link_config config = config_of(&client, streams, shm);
    streams_here = streams;
    CHECK_EQ(link_dial(&config, &here, &client.link), 0);
}

static void close_door(void)
{
    link_free(client.link);
    link_free(server.link);
    door_close(door);
    loop_free(loop);
}

/* Chunk i is the source from byte i on: each differs. */
static void check_chunks(const struct side *to)
{
    for (uint32_t i = 0; i < CHUNKS; i++) {
        CHECK_EQ(to->seen[i], 1);
        CHECK(memcmp(target[i], source + i, CHUNK) == 0);
    }
}

#endif
