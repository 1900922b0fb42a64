/* conn_inside.h - what conn.c (life and handshake) and conn_frames.c (frames) share. */
#ifndef SOLO_OS_CONN_INSIDE_H
#define SOLO_OS_CONN_INSIDE_H

#include "os/conn.h"
#include "os/dial.h"
#include "os/outbox.h"
#include "os/transport.h"

#define CONN_INPUT_BYTES (16u << 10) /* small frames are received many at a time */

#define CONN_TOLD_MAX 64u /* frames made in place between two turns */

enum conn_state {
    CONN_DIALING,
    CONN_HELLO,
    CONN_SHARING, /* AF_UNIX: the segment is on its way */
    CONN_OPEN,
    CONN_LOST,
};

struct conn {
    struct conn_config config;
    enum conn_state state;
    bool dialed;
    bool finishing; /* nothing new is sent; `shut` once the last byte went out */
    bool shut;
    bool ended;      /* patient: the other side is gone, what it sent is still to be read */
    bool paused;     /* place said SOLO_EAGAIN */
    bool nagged;     /* paused, and epoll reports what nobody may read: it shall not */
    bool placing;    /* a header is here whose payload has no place yet */
    bool blocked;    /* the transport takes no more for now */
    bool drained;    /* the last read brought all there was: this turn asks no more */
    bool more_input; /* this turn's share is used up, or reading was resumed */
    uint32_t busy;   /* callbacks below us on the stack: conn_free then only sets `freed` */
    bool freed;
    enum solo_reach reach;

    struct dial *dial;
    struct addr peer_addr;
    char peer[ADDR_TEXT_MAX];
    struct transport transport;
    struct loop_io io;
    struct loop_timer deadline; /* of the handshake, later of conn_finish */
    struct loop_task pump;      /* send and receive at the end of the turn */

    struct hello hello;
    size_t hello_sent; /* bytes of hello_out that went out */

    struct frame_reader reader;
    void *room;     /* where the payload in progress goes */
    uint8_t *inbox; /* for payloads without room; grows to CONN_INBOX_MAX at most */
    size_t inbox_size;
    size_t input_at, input_end;
    uint8_t input[CONN_INPUT_BYTES];

    struct outbox outbox;
    uint8_t *offered;             /* by conn_room; NULL: none */
    bool room_wanted;             /* conn_room had none */
    uint64_t told[CONN_TOLD_MAX]; /* tags of payloads made in place, whose `sent` is due */
    uint32_t told_count;
    uint64_t sent_bytes, received_bytes;
};

/* conn.c: the abstract socket of the door with this port. */
#define CONN_LOCAL_NAME_MAX 32u
void conn_local_name(uint16_t port, char out[CONN_LOCAL_NAME_MAX]);

/* conn.c: closes and calls lost with this thread's error text. Only from the loop. */
void conn_fail(struct conn *conn, int rc);
/* conn.c: watches the descriptor for what is wanted now. */
void conn_rewatch(struct conn *conn);

/* conn_frames.c: all that can be done now, within this turn's share. */
void conn_receive(struct conn *conn);
void conn_flush(struct conn *conn);

/* False once the connection was lost or freed by a callback: then touch nothing more of it. */
static inline bool conn_alive(const struct conn *conn)
{
    return conn->state == CONN_OPEN && !conn->freed;
}

#endif
