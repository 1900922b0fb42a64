/* conn.h - one connection: proof of the token, then frames both ways.
 *
 * Threads: loop thread only. The callbacks run from the loop, never from inside a call to this
 * file, and may call anything here, conn_close too. Before the other side has proved the token
 * nothing of it is allocated or parsed but a hello of fixed size, within CONN_HELLO_US. */
#ifndef SOLO_OS_CONN_H
#define SOLO_OS_CONN_H

#include "os/addr.h"
#include "os/auth.h"
#include "os/loop.h"
#include "wire/frame.h"
#include "wire/hello.h"

#define CONN_HELLO_US     5000000u     /* deadline of connect + handshake unless told otherwise */
#define CONN_SENDS_MAX    256u         /* frames that wait to be sent */
#define CONN_COPIED_MAX   (4u << 20)   /* bytes of copied payloads that wait to be sent */
#define CONN_INBOX_MAX    (1u << 20)   /* largest payload for which `place` may give no room */

struct conn;

/* All called on the loop thread; `place`, `sent` and `room` may be NULL. After `lost` the
 * connection is closed and calls nothing more; conn_free is still the owner's. */
struct conn_calls {
    /* Both sides have proved the token. May refuse with a negative code: lost follows. */
    int (*open)(void *context, struct conn *conn, const struct hello *peer);
    /* Where this frame's payload shall go, frame->payload_bytes of room; *room_out NULL: the
     * connection's own buffer, if it is not larger than CONN_INBOX_MAX. SOLO_EAGAIN: not now,
     * reading stops until conn_resume and then asks again. Other errors close. */
    int (*place)(void *context, struct conn *conn, const struct frame *frame, void **room_out);
    /* A whole frame, its checksum right. `payload` is what place gave, or valid during the call. */
    int (*frame)(void *context, struct conn *conn, const struct frame *frame,
                 const void *payload);
    /* The borrowed payload of this send is the caller's again. */
    void (*sent)(void *context, struct conn *conn, uint64_t tag);
    /* The queue has run low (conn_waiting below 2 frames): a good moment for more. */
    void (*room)(void *context, struct conn *conn);
    /* Over: rc and text say why (SOLO_ECLOSED: the other side closed it in good order).
     * Payloads that were not sent are the caller's again. */
    void (*lost)(void *context, struct conn *conn, int rc, const char *text);
};

struct conn_config {
    struct loop *loop;
    const struct auth_key *key; /* borrowed while the connection lives */
    const struct hello *hello;  /* what we say of ourselves; copied */
    const struct conn_calls *calls; /* borrowed while the connection lives */
    void *context;
    uint64_t hello_us; /* 0: CONN_HELLO_US */
};

/* Connects to the first address of the name that answers. The outcome comes as open or lost.
 * Gives *out: conn_free. */
int conn_dial(const struct conn_config *config, const struct solo_url *to, struct conn **out);

/* The other side of an accepted socket, which it takes. SOLO_EAUTH: the address is not
 * loopback and there is no token. Gives *out. */
int conn_accept(const struct conn_config *config, int fd, struct conn **out);

/* Sends a frame: header fields from `frame`, its sizes and checksums filled in here. Borrows
 * `payload` until `sent` with this tag, or `lost`. Never blocks, never calls back. SOLO_EAGAIN:
 * CONN_SENDS_MAX frames wait. SOLO_ECLOSED: not open, or lost. */
int conn_send(struct conn *conn, const struct frame *frame, const void *payload, uint64_t tag);

/* The same with a copy of the payload; `sent` is not called. SOLO_EAGAIN: CONN_COPIED_MAX. */
int conn_send_copy(struct conn *conn, const struct frame *frame, const void *payload);

uint32_t conn_waiting(const struct conn *conn); /* frames not handed to the kernel yet */
void conn_resume(struct conn *conn);            /* after place said SOLO_EAGAIN */

/* Sends what waits, then closes; lost(SOLO_ECLOSED) follows, at the latest at the deadline. */
void conn_finish(struct conn *conn, uint64_t deadline_us);

/* Closes at once and frees; nothing is called any more. NULL is allowed. */
void conn_free(struct conn *conn);

const char *conn_peer_text(const struct conn *conn);          /* "10.0.0.4:41822" */
const struct addr *conn_peer_addr(const struct conn *conn);
const struct hello *conn_peer_hello(const struct conn *conn); /* after open */
enum solo_reach conn_reach(const struct conn *conn);          /* how far dialling got */
uint32_t conn_rtt_us(const struct conn *conn);
uint64_t conn_heard_us(const struct conn *conn);              /* when bytes last arrived */
uint64_t conn_sent_bytes(const struct conn *conn);
uint64_t conn_received_bytes(const struct conn *conn);

#endif
