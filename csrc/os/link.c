#include "os/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "os/link_inside.h"
#include "os/sock.h"

/* A stream is fed when fewer frames than this wait in it: one being sent, one to follow. */
enum { STREAM_FRAMES = 2 };

enum { RTT_EVERY_US = 1000 };

/* ---- ends ------------------------------------------------------------------------------- */

static void drop_stream(struct stream *stream)
{
    struct link *link = stream->link;
    if (stream->conn) {
        link->closed_sent_bytes += conn_sent_bytes(stream->conn);
        link->closed_received_bytes += conn_received_bytes(stream->conn);
        conn_free(stream->conn);
    }
    stream->conn = NULL;
    stream->open = stream->arrives = false;
}

static void close_all(struct link *link)
{
    for (uint32_t i = 0; i < link->streams_end; i++) {
        drop_stream(&link->streams[i]);
    }
    loop_timer_cancel(link->config.loop, &link->deadline);
    link->state = LINK_LOST;
}

void link_free(struct link *link)
{
    if (link) {
        close_all(link);
        link_queue_deinit(&link->queue);
        free(link);
    }
}

/* The consumer may free the link in the callback: nothing is touched after it. */
static void link_fail(struct link *link, int rc, const char *reason)
{
    char text[SOLO_TEXT_MAX];
    if (link->state == LINK_LOST) {
        return;
    }
    strncpy(text, reason, sizeof text - 1);
    text[sizeof text - 1] = 0;
    close_all(link);
    link->config.calls->lost(link->config.context, link, rc, text);
}

static void on_deadline(void *context)
{
    struct link *link = context;
    link_fail(link, SOLO_ECLOSED, "closed; the other side did not close all streams in time");
}

/* ---- streams: how many ------------------------------------------------------------------ */

static uint32_t streams_used(const struct link *link)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < link->streams_end; i++) {
        count += link->streams[i].conn != NULL;
    }
    return count;
}

/* Unless the user has said how many. */
static void want(struct link *link, uint32_t streams)
{
    uint32_t most = link->config.streams_max ? link->config.streams_max : LINK_STREAMS_MAX;
    streams = streams < most ? streams : most;
    if (link->config.streams == 0 && streams > link->streams_wanted) {
        link->streams_wanted = streams;
    }
}

static void measure(struct link *link)
{
    uint32_t wanted = pace_measure(&link->pace, loop_now(link->config.loop), link_sent_bytes(link),
                                   link->queue.count > 0, link->send_bytes_max, link_streams(link));
    want(link, wanted);
}

/* Asking the kernel costs as much as sending a short frame. */
static void learn_rtt(struct link *link, const struct conn *conn)
{
    uint64_t now_us = loop_now(link->config.loop);
    if (now_us - link->rtt_asked_us >= RTT_EVERY_US) {
        link->rtt_asked_us = now_us;
        pace_rtt(&link->pace, conn_rtt_us(conn));
    }
}

/* ---- sending ---------------------------------------------------------------------------- */

static bool feed(struct link *link, struct stream *stream)
{
    struct link_entry *entry = link_queue_first(&link->queue);
    if (!entry || !stream->open || conn_waiting(stream->conn) >= STREAM_FRAMES ||
        conn_send(stream->conn, &entry->frame, entry->payload, entry->size, entry->tag) < 0) {
        return false; /* a stream that just broke will say so itself */
    }
    link_queue_pop(&link->queue);
    return true;
}

static void open_streams(struct link *link);

/* Hands waiting frames to streams with room, in turn. */
static void feed_all(struct link *link)
{
    uint32_t idle = 0;
    while (idle < link->streams_end && link->queue.count > 0) {
        struct stream *stream = &link->streams[link->next_stream];
        idle = feed(link, stream) ? 0 : idle + 1;
        link->next_stream = (link->next_stream + 1) % link->streams_end;
    }
}

static void finish_streams(struct link *link)
{
    for (uint32_t i = 0; i < link->streams_end; i++) {
        struct stream *stream = &link->streams[i];
        if (stream->open) {
            conn_finish(stream->conn, link->deadline.due_us);
        } else {
            drop_stream(stream);
        }
    }
}

int link_send(struct link *link, const struct frame *frame, const void *payload, size_t size,
              uint64_t tag)
{
    if (link->state == LINK_LOST || link->state == LINK_DRAINING || link->finishing) {
        return err_set(SOLO_ECLOSED, "the link to %s is closed", link->peer);
    }
    if (size > frame_size_max(frame->type)) {
        return err_set(SOLO_ELIMIT, "a %s frame of %zu bytes: %u are allowed",
                       frame_name(frame->type), size, frame_size_max(frame->type));
    }
    struct stream *first = &link->streams[0]; /* the only one, if it is shared memory */
    if (first->conn && conn_offered(first->conn, payload)) {
        return conn_send(first->conn, frame, payload, size, tag);
    }
    TRY(link_queue_push(&link->queue, frame, payload, size, tag));
    if (link->state == LINK_OPEN) {
        feed_all(link);
        if (link->queue.count > 0 && streams_used(link) < link->streams_wanted) {
            open_streams(link);
        }
    }
    return 0;
}

int link_room(struct link *link, size_t size, size_t spare, void **out)
{
    if (!link_is_shm(link) || link->state != LINK_OPEN || link->finishing) {
        return SOLO_ENOTSUP;
    }
    return link->queue.count > 0 ? SOLO_EAGAIN : conn_room(link->streams[0].conn, size, spare, out);
}

void link_finish(struct link *link, uint64_t deadline_us)
{
    if (link->state == LINK_LOST) {
        return;
    }
    link->finishing = true;
    /* Not open: nothing to wait for. The timer, so that lost comes from the loop. */
    loop_timer_set(link->config.loop, &link->deadline,
                   link->state == LINK_DIALING ? 0 : deadline_us);
    if (link->state == LINK_OPEN && link->queue.count == 0) {
        finish_streams(link);
    }
}

/* ---- what the streams say --------------------------------------------------------------- */

static void stream_opened(struct link *link, struct stream *stream)
{
    stream->open = true;
    strncpy(link->peer, conn_peer(stream->conn), sizeof link->peer - 1);
    pace_rtt(&link->pace, conn_rtt_us(stream->conn));
    if (conn_is_shm(stream->conn)) {
        link->no_more_streams = true; /* one ring is as fast as memory */
    } else {
        want(link, pace_first_streams(&link->pace));
    }
}

static void on_stream_open(void *context, struct conn *conn)
{
    struct stream *stream = context;
    struct link *link = stream->link;
    if (link->config.greeting) {
        conn_send_copy(conn, &link->greeting, link->greeting_payload, link->config.greeting_size);
    }
    bool first = link->state == LINK_DIALING;
    stream_opened(link, stream);
    link->state = LINK_OPEN;
    feed_all(link);
    if (first && link->config.calls->open) {
        link->config.calls->open(link->config.context, link);
    }
}

static int on_stream_place(void *context, struct conn *conn, const struct frame *frame,
                           void **room_out)
{
    struct stream *stream = context;
    struct link *link = stream->link;
    (void)conn;
    stream->arrives = false;
    if (!link->config.calls->place) {
        return 0;
    }
    int rc = link->config.calls->place(link->config.context, link, frame, room_out);
    if (rc == 0) { /* else the link may be gone */
        stream->arrives = true;
        stream->arriving = *frame;
    }
    return rc;
}

static int on_stream_frame(void *context, struct conn *conn, const struct frame *frame,
                           const void *payload)
{
    struct stream *stream = context;
    struct link *link = stream->link;
    (void)conn;
    stream->arrives = false;
    return link->config.calls->frame(link->config.context, link, frame, payload);
}

static void on_stream_sent(void *context, struct conn *conn, uint64_t tag)
{
    struct link *link = ((struct stream *)context)->link;
    (void)conn;
    if (link->config.calls->sent) {
        link->config.calls->sent(link->config.context, link, tag);
    }
}

static void on_stream_room(void *context, struct conn *conn)
{
    struct stream *stream = context;
    struct link *link = stream->link;
    while (feed(link, stream)) {
    }
    if (link->queue.count == 0 && link->config.calls->room) {
        link->config.calls->room(link->config.context, link);
    }
    learn_rtt(link, conn);
    measure(link);
    if (link->finishing) {
        if (link->queue.count == 0) {
            finish_streams(link);
        }
    } else if (link->queue.count > 0 && streams_used(link) < link->streams_wanted) {
        open_streams(link);
    }
}

static int dial_stream(struct link *link, struct stream *stream);

static void on_stream_lost(void *context, struct conn *conn, int rc, const char *text)
{
    struct stream *stream = context;
    struct link *link = stream->link;
    bool was_open = stream->open, was_local = link->no_more_streams && !was_open;
    (void)conn;
    drop_stream(stream);
    if (!was_open && link->state == LINK_DIALING && was_local) {
        link->no_more_streams = false; /* no shared memory after all */
        rc = dial_stream(link, stream);
        if (rc < 0) {
            link_fail(link, rc, err_text());
        }
    } else if (!was_open && link->state != LINK_DIALING) {
        link->no_more_streams = true; /* a further one: the link goes on without */
    } else if (rc == SOLO_ECLOSED && was_open && link_streams(link) > 0) {
        if (link->state == LINK_OPEN && !link->finishing && !link->config.patient) {
            loop_timer_set(link->config.loop, &link->deadline,
                           loop_now(link->config.loop) + LINK_DRAIN_US);
        }
        link->state = LINK_DRAINING;
    } else {
        link_fail(link, rc, text);
    }
}

static const struct conn_calls stream_calls = {
    .open = on_stream_open,
    .place = on_stream_place,
    .frame = on_stream_frame,
    .sent = on_stream_sent,
    .room = on_stream_room,
    .lost = on_stream_lost,
};

/* ---- opening ---------------------------------------------------------------------------- */

static void note_used(struct link *link, const struct stream *stream)
{
    uint32_t end = (uint32_t)(stream - link->streams) + 1;
    link->streams_end = end > link->streams_end ? end : link->streams_end;
}

static int dial_stream(struct link *link, struct stream *stream)
{
    struct conn_config config = link->conn_config;
    config.context = stream;
    note_used(link, stream);
    return conn_dial(&config, &link->to, &stream->conn);
}

/* Shared memory first, where the host is this one; else, or if nobody is there, TCP. */
static int dial_first(struct link *link)
{
    struct stream *stream = &link->streams[0];
    struct conn_config config = link->conn_config;
    config.context = stream;
    if (link->config.shm && addr_is_this_host(&link->to) &&
        conn_dial_local(&config, link->to.port, &stream->conn) == 0) {
        link->no_more_streams = true;
        return 0;
    }
    return dial_stream(link, stream);
}

static void open_streams(struct link *link)
{
    uint32_t used = streams_used(link);
    for (uint32_t i = 0; i < LINK_STREAMS_MAX && used < link->streams_wanted; i++) {
        if (!link->dialed || link->no_more_streams) {
            return;
        }
        if (!link->streams[i].conn) {
            link->no_more_streams = dial_stream(link, &link->streams[i]) < 0;
            used++;
        }
    }
}

static int link_new(const struct link_config *config, struct link **out)
{
    if (config->greeting_size > LINK_GREETING_MAX) {
        err_set(SOLO_ELIMIT, "a greeting of %zu bytes: %u are allowed", config->greeting_size,
                LINK_GREETING_MAX);
        return SOLO_ELIMIT;
    }
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        err_set(SOLO_ENOMEM, "no memory for a link");
        return SOLO_ENOMEM;
    }
    MUST(config->calls->frame && config->calls->lost);
    link->config = *config;
    link->conn_config = (struct conn_config){.loop = config->loop,
                                             .job_id = config->job_id,
                                             .token = config->token,
                                             .insecure = config->insecure,
                                             .roles = 1u << config->role,
                                             .hello_us = config->hello_us,
                                             .patient = config->patient,
                                             .calls = &stream_calls};
    link->send_bytes_max = sock_send_bytes_max();
    link->streams_wanted = config->streams ? config->streams : 1;
    if (link->streams_wanted > LINK_STREAMS_MAX) {
        link->streams_wanted = LINK_STREAMS_MAX;
    }
    link->streams_end = 1;
    for (uint32_t i = 0; i < LINK_STREAMS_MAX; i++) {
        link->streams[i].link = link;
    }
    link->deadline = (struct loop_timer){.fn = on_deadline, .context = link};
    *out = link;
    return 0;
}

int link_dial(const struct link_config *config, const struct solo_url *to, struct link **out)
{
    struct link *link = NULL;
    TRY(link_new(config, &link));
    link->dialed = true;
    link->to = *to;
    if (config->greeting) {
        link->greeting = *config->greeting;
    }
    if (config->greeting_size) {
        memcpy(link->greeting_payload, config->greeting_payload, config->greeting_size);
    }
    snprintf(link->peer, sizeof link->peer, "%.50s:%u", to->host, to->port);
    int rc = dial_first(link);
    if (rc < 0) {
        link_free(link);
        return rc;
    }
    *out = link;
    return 0;
}

int link_add(struct link *link, struct conn *conn)
{
    if (link->state != LINK_OPEN || link->finishing) {
        return err_set(SOLO_ECLOSED, "the link to %s is closed", link->peer);
    }
    for (uint32_t i = 0; i < LINK_STREAMS_MAX; i++) {
        struct stream *stream = &link->streams[i];
        if (!stream->conn) {
            conn_adopt(conn, &stream_calls, stream);
            if (link->config.patient) {
                conn_be_patient(conn);
            }
            stream->conn = conn;
            note_used(link, stream);
            stream_opened(link, stream);
            feed_all(link);
            return 0;
        }
    }
    return err_set(SOLO_ELIMIT, "%s opens more than %u streams", link->peer, LINK_STREAMS_MAX);
}

int link_accept(const struct link_config *config, struct conn *first, struct link **out)
{
    struct link *link = NULL;
    TRY(link_new(config, &link));
    link->state = LINK_OPEN;
    int rc = link_add(link, first);
    if (rc < 0) {
        link_free(link);
        return rc;
    }
    *out = link;
    return 0;
}

/* ---- payloads --------------------------------------------------------------------------- */

void link_resume(struct link *link)
{
    for (uint32_t i = 0; i < link->streams_end; i++) {
        if (link->streams[i].open) {
            conn_resume(link->streams[i].conn);
        }
    }
}

void link_divert(struct link *link, const void *base, size_t size)
{
    for (uint32_t i = 0; i < link->streams_end; i++) {
        if (link->streams[i].open) {
            conn_divert(link->streams[i].conn, base, size);
            link->streams[i].arrives = false; /* perhaps not this one: then twice is not noticed */
        }
    }
}

int link_forget(struct link *link, const void *base, size_t size)
{
    link_queue_forget(&link->queue, base, size);
    for (uint32_t i = 0; i < link->streams_end; i++) {
        if (link->streams[i].open) {
            TRY(conn_forget(link->streams[i].conn, base, size));
        }
    }
    return 0;
}
