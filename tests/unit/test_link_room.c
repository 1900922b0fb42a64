/* Payloads that are made and used in a link's shared memory. */
#include "link_world.h"

/* Every other one: the rest waits its turn in the link, which those made in place may overtake. */
TEST(payloads_are_made_and_used_where_shared_memory_has_them)
{
    open_door("127.0.0.1");
    dial(1, true);
    UNTIL(client.opened && server.link);
    server.place_rc = CONN_IN_PLACE;
    CHECK(link_in_place(server.link, CHUNK));
    CHECK(!link_in_place(server.link, RING_BYTES));
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct frame frame = {.type = FRAME_DELTA, .chunk = i};
        void *room = NULL;
        if (i % 2) {
            CHECK_EQ(link_send(client.link, &frame, source + i, CHUNK, i), 0);
            continue;
        }
        UNTIL(link_room(client.link, CHUNK, CHUNK, &room) == 0);
        memcpy(room, source + i, CHUNK);
        CHECK_EQ(link_send(client.link, &frame, room, CHUNK, i), 0);
        CHECK_EQ(client.was_sent[i], 0); /* told from the loop, like all others */
    }
    UNTIL(server.frames == CHUNKS && client.sent == CHUNKS);
    check_chunks(&server);
    close_door();
}

TEST(a_link_without_shared_memory_has_no_room_to_offer)
{
    void *room = NULL;
    open_door("127.0.0.1");
    dial(1, false);
    UNTIL(client.opened && server.link);
    CHECK_EQ(link_room(client.link, CHUNK, 0, &room), SOLO_ENOTSUP);
    CHECK(!link_in_place(server.link, 1));
    close_door();
}

/* Sends chunks, numbered on from frame->chunk, until no room is left but `spare`. */
static void fill(struct frame *frame, size_t spare)
{
    void *room = NULL;
    while (link_room(client.link, CHUNK, spare, &room) == 0) {
        memcpy(room, source + frame->chunk, CHUNK);
        CHECK_EQ(link_send(client.link, frame, room, CHUNK, frame->chunk), 0);
        frame->chunk++;
    }
}

TEST(a_full_ring_offers_no_room_and_says_when_it_may)
{
    void *room = NULL;
    struct frame frame = {.type = FRAME_DELTA};
    open_door("127.0.0.1");
    dial(1, true);
    UNTIL(client.opened && server.link);
    server.place_rc = SOLO_EAGAIN; /* the reader stands still */
    CHECK_EQ(link_room(client.link, RING_BYTES, 0, &room), SOLO_ENOTSUP);
    fill(&frame, CHUNK);
    CHECK(frame.chunk >= 2);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
    }
    CHECK_EQ(link_room(client.link, CHUNK, CHUNK, &room), SOLO_EAGAIN);
    client.rooms = 0;
    server.place_rc = CONN_IN_PLACE;
    link_resume(server.link);
    UNTIL(client.rooms > 0);
    CHECK_EQ(link_room(client.link, CHUNK, CHUNK, &room), 0);
    close_door();
}

/* Else who takes for others has no turn for what others wait for. */
TEST(a_turn_takes_only_a_few_frames_of_a_full_ring)
{
    struct frame frame = {.type = FRAME_DELTA};
    open_door("127.0.0.1");
    dial(1, true);
    UNTIL(client.opened && server.link);
    server.place_rc = SOLO_EAGAIN; /* until all are there */
    fill(&frame, 0);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(loop_turn(loop, clock_us() + 1000), 0);
    }
    CHECK(frame.chunk > 8 && server.frames == 0);
    server.place_rc = CONN_IN_PLACE;
    link_resume(server.link);
    uint64_t deadline_us = clock_us() + 20000000;
    while (server.frames < (int)frame.chunk) {
        int before = server.frames;
        CHECK(clock_us() < deadline_us);
        CHECK_EQ(loop_turn(loop, deadline_us), 0);
        CHECK(server.frames - before <= 4); /* the bell's and the turn's own */
    }
    close_door();
}
