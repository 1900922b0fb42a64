/* The frames of an open connection: out of the outbox into the transport, and out of the
 * transport to where the consumer wants them. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "os/conn_inside.h"

/* What one connection may move in one turn before others have theirs. Frames in shared memory are
 * worked with where they lie, and the other side fills up what is taken: with more than two of the
 * largest a turn, one side of a merge would only take for milliseconds, and the other, which gets
 * nothing to take, stand still. */
enum { TURN_BYTES = 4 << 20, SHM_TURN_BYTES = 512 << 10 };
enum { PARTS_MAX = 16, ROOM_BELOW = 2, UNCHECKED_BYTES = 4096 };

/* ---- sending ---------------------------------------------------------------------------- */

static int can_send(const struct conn *conn, const struct frame *frame, size_t size)
{
    if (conn->state != CONN_OPEN || conn->finishing) {
        return err_set(SOLO_ECLOSED, "the connection to %s is not open", conn->peer);
    }
    if (size > frame_size_max(frame->type)) {
        return err_set(SOLO_ELIMIT, "a %s frame of %zu bytes: %u are allowed",
                       frame_name(frame->type), size, frame_size_max(frame->type));
    }
    return 0;
}

int conn_room(struct conn *conn, size_t size, size_t spare, void **out)
{
    size_t whole = FRAME_HEADER_BYTES + size;
    conn->offered = NULL;
    if (!conn_is_shm(conn) || conn->state != CONN_OPEN || conn->finishing || size == 0 ||
        whole + spare > RING_BYTES) {
        return SOLO_ENOTSUP;
    }
    uint8_t *at = NULL;
    bool between = conn->outbox.done == 0 && conn->told_count < CONN_TOLD_MAX;
    int64_t room = between ? transport_room(&conn->transport, whole, spare, &at) : 0;
    if (room <= 0) { /* of an end the next read or write tells */
        conn->room_wanted = true;
        return SOLO_EAGAIN;
    }
    *out = conn->offered = at + FRAME_HEADER_BYTES;
    return 0;
}

bool conn_offered(const struct conn *conn, const void *payload)
{
    return payload && conn->offered == payload;
}

static void send_in_place(struct conn *conn, struct frame *head, size_t size, uint64_t tag)
{
    head->size = (uint32_t)size;
    if (!(head->flags & FRAME_UNCHECKED)) {
        head->payload_crc = frame_crc(conn->offered, size);
    }
    frame_encode(head, conn->offered - FRAME_HEADER_BYTES);
    conn->offered = NULL;
    conn->told[conn->told_count++] = tag;
    conn->sent_bytes += FRAME_HEADER_BYTES + size;
    transport_put(&conn->transport, FRAME_HEADER_BYTES + size);
    loop_later(conn->config.loop, &conn->pump);
}

int conn_send(struct conn *conn, const struct frame *frame, const void *payload, size_t size,
              uint64_t tag)
{
    TRY(can_send(conn, frame, size));
    struct frame head = *frame;
    if (conn_is_shm(conn) && size >= UNCHECKED_BYTES) { /* what a checksum guards is not there */
        head.flags |= FRAME_UNCHECKED;
        head.payload_crc = 0;
    }
    if (conn_offered(conn, payload)) {
        send_in_place(conn, &head, size, tag);
        return 0;
    }
    TRY(outbox_push(&conn->outbox, &head, payload, size, tag, NULL));
    if (!conn->blocked) {
        loop_later(conn->config.loop, &conn->pump);
    }
    return 0;
}

int conn_send_copy(struct conn *conn, const struct frame *frame, const void *payload, size_t size)
{
    TRY(can_send(conn, frame, size));
    void *copy = malloc(size ? size : 1);
    if (!copy) {
        return err_set(SOLO_ENOMEM, "no memory for a frame of %zu bytes", size);
    }
    if (size) {
        memcpy(copy, payload, size);
    }
    int rc = outbox_push(&conn->outbox, frame, copy, size, 0, copy);
    if (rc < 0) {
        free(copy);
        return rc;
    }
    if (!conn->blocked) {
        loop_later(conn->config.loop, &conn->pump);
    }
    return 0;
}

static void tell_sent(struct conn *conn)
{
    uint64_t tag;
    bool borrowed;
    for (uint32_t i = 0; i < conn->told_count && conn_alive(conn); i++) {
        if (conn->config.calls->sent) {
            conn->config.calls->sent(conn->config.context, conn, conn->told[i]);
        }
    }
    conn->told_count = 0;
    while (conn_alive(conn) && outbox_next_sent(&conn->outbox, &tag, &borrowed)) {
        if (borrowed && conn->config.calls->sent) {
            conn->config.calls->sent(conn->config.context, conn, tag);
        }
    }
}

/* The last byte is out: the other side reads an end, and answers with its own. */
static void shut(struct conn *conn)
{
    conn->shut = true;
    transport_shut(&conn->transport);
}

static bool write_some(struct conn *conn, size_t *budget)
{
    struct iovec parts[PARTS_MAX];
    int count = outbox_parts(&conn->outbox, parts, PARTS_MAX);
    ssize_t sent = conn->transport.calls->write(&conn->transport, parts, count);
    if (sent == SOLO_EAGAIN) {
        conn->blocked = true;
        return false;
    }
    if (sent < 0) {
        conn_fail(conn, (int)sent);
        return false;
    }
    conn->sent_bytes += (uint64_t)sent;
    *budget -= (size_t)sent < *budget ? (size_t)sent : *budget;
    outbox_advance(&conn->outbox, (size_t)sent);
    tell_sent(conn);
    return true;
}

void conn_flush(struct conn *conn)
{
    size_t budget = TURN_BYTES;
    conn->blocked = conn->room_wanted = false;
    bool more = true;
    tell_sent(conn);
    while (more && conn_alive(conn)) {
        if (conn->outbox.count < ROOM_BELOW && !conn->finishing && conn->config.calls->room) {
            conn->config.calls->room(conn->config.context, conn);
        }
        more =
            conn_alive(conn) && conn->outbox.count > 0 && budget > 0 && write_some(conn, &budget);
    }
    if (!conn_alive(conn)) {
        return;
    }
    if (conn->outbox.count > 0 && !conn->blocked) {
        loop_later(conn->config.loop, &conn->pump);
    } else if (conn->outbox.count == 0 && conn->finishing && !conn->shut) {
        shut(conn);
    }
}

/* ---- receiving -------------------------------------------------------------------------- */

/* Up to `size` bytes: large payloads straight to their place, small ones through a buffer, so
 * that many headers come with one call. Shared memory needs no such buffer. */
static ssize_t input_read(struct conn *conn, void *at, size_t size)
{
    struct transport *transport = &conn->transport;
    ssize_t count;
    if (conn->input_at == conn->input_end) {
        bool direct = transport_is_shm(transport) || size >= CONN_INPUT_BYTES;
        if (conn->drained) {
            return SOLO_EAGAIN;
        }
        count = direct ? transport->calls->read(transport, at, size)
                       : transport->calls->read(transport, conn->input, CONN_INPUT_BYTES);
        if (count > 0) {
            conn->received_bytes += (uint64_t)count;
        }
        if (direct || count < 0) {
            return count;
        }
        conn->input_at = 0;
        conn->input_end = (size_t)count;
        conn->drained = conn->input_end < CONN_INPUT_BYTES;
    }
    size_t waits = conn->input_end - conn->input_at;
    size_t taken = size < waits ? size : waits;
    memcpy(at, conn->input + conn->input_at, taken);
    conn->input_at += taken;
    return (ssize_t)taken;
}

static int inbox_room(struct conn *conn, const struct frame *frame, void **room_out)
{
    if (frame->size > CONN_INBOX_MAX) {
        return err_set(SOLO_EPEER, "nobody here awaits a %s frame of %u bytes",
                       frame_name(frame->type), frame->size);
    }
    if (frame->size > conn->inbox_size) {
        uint8_t *larger = realloc(conn->inbox, frame->size);
        if (!larger) {
            return err_set(SOLO_ENOMEM, "no memory for a frame of %u bytes", frame->size);
        }
        conn->inbox = larger;
        conn->inbox_size = frame->size;
    }
    *room_out = conn->inbox;
    return 0;
}

/* The payload stays in shared memory: once all of it is there, it is delivered from there. */
static int take_in_place(struct conn *conn, const struct frame *frame)
{
    const uint8_t *payload = NULL;
    MUST(conn_is_shm(conn) && frame->size <= RING_BYTES);
    int64_t count = transport_peek(&conn->transport, frame->size, &payload);
    if (count <= 0) {
        conn->placing = true;
        return count < 0 ? (int)count : SOLO_EAGAIN;
    }
    conn->placing = false;
    conn->received_bytes += frame->size;
    TRY(frame_reader_whole(&conn->reader, payload));
    int rc = conn->config.calls->frame(conn->config.context, conn, frame, payload);
    if (conn_alive(conn)) {
        transport_take(&conn->transport, frame->size);
    }
    return rc;
}

/* Where the payload of the header that came shall go. 0: reading goes on. */
static int place(struct conn *conn)
{
    struct frame frame = conn->reader.frame;
    void *room = NULL;
    int rc = 0;
    if (frame.size > 0 && conn->config.calls->place) {
        rc = conn->config.calls->place(conn->config.context, conn, &frame, &room);
        if (!conn_alive(conn)) {
            return SOLO_ECLOSED;
        }
    }
    if (rc == SOLO_EAGAIN) {
        conn->paused = conn->placing = true;
        return rc;
    }
    TRY(rc);
    if (rc == CONN_IN_PLACE) {
        return take_in_place(conn, &frame);
    }
    if (rc == 0 && frame.size > 0 && !room) {
        TRY(inbox_room(conn, &frame, &room));
    }
    conn->placing = false;
    conn->room = rc == 0 ? room : NULL; /* 1: skipped */
    frame_reader_into(&conn->reader, conn->room);
    return 0;
}

static int deliver(struct conn *conn)
{
    struct frame frame = conn->reader.frame;
    void *payload = conn->room;
    conn->room = NULL;
    return conn->config.calls->frame(conn->config.context, conn, &frame, payload);
}

/* One read and what follows from it: bytes read (maybe 0), or an error. */
static ssize_t receive_step(struct conn *conn)
{
    uint64_t before = conn->received_bytes;
    if (conn->placing) {
        TRY(place(conn));
    }
    if (!conn_alive(conn)) {
        return 0;
    }
    struct frame_want want = frame_reader_want(&conn->reader);
    ssize_t count = want.size > 0 ? input_read(conn, want.at, want.size) : 0;
    if (count < 0) {
        return count;
    }
    int step = frame_reader_feed(&conn->reader, (size_t)count);
    if (step == FRAME_HEADER && conn->reader.unchecked && !conn_is_shm(conn)) {
        step = err_set(SOLO_EPEER, "a frame without a checksum came from %s", conn->peer);
    } else if (step == FRAME_HEADER) {
        step = place(conn);
    } else if (step == FRAME_PAYLOAD) {
        step = deliver(conn);
    } else if (step == FRAME_SKIPPED) {
        conn->room = NULL;
    }
    return step < 0 ? step : (ssize_t)(conn->received_bytes - before);
}

static bool between_frames(struct conn *conn)
{
    return !conn->placing && conn->room == NULL && conn->reader.got == 0;
}

static void end_of_input(struct conn *conn, int rc)
{
    if (rc == SOLO_ECLOSED && !between_frames(conn)) {
        rc = err_set(SOLO_ESYS, "the other side died in the middle of a frame");
    }
    conn_fail(conn, rc);
}

void conn_receive(struct conn *conn)
{
    size_t budget = conn_is_shm(conn) ? SHM_TURN_BYTES : TURN_BYTES;
    conn->more_input = conn->drained = false;
    while (budget > 0 && conn_alive(conn) && !conn->paused) {
        ssize_t count = receive_step(conn);
        if (!conn_alive(conn) || count == SOLO_EAGAIN) {
            return;
        }
        if (count < 0) {
            end_of_input(conn, (int)count);
            return;
        }
        budget -= (size_t)count < budget ? (size_t)count : budget;
    }
    if (conn_alive(conn) && !conn->paused) {
        conn->more_input = true;
        loop_later(conn->config.loop, &conn->pump);
    }
}

void conn_resume(struct conn *conn)
{
    if (conn->paused) {
        conn->paused = false;
        conn->more_input = true;
        loop_later(conn->config.loop, &conn->pump);
    }
}

int conn_forget(struct conn *conn, const void *base, size_t size)
{
    return outbox_forget(&conn->outbox, base, size);
}

void conn_divert(struct conn *conn, const void *base, size_t size)
{
    uintptr_t room = (uintptr_t)conn->room, start = (uintptr_t)base;
    if (conn->room && room >= start && room - start < size) {
        frame_reader_divert(&conn->reader);
        conn->room = NULL;
    }
}
