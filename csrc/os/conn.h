/* conn.h - one connection: proof of the token, then frames both ways.
 *
 * Threads: loop thread only. Callbacks run from the loop, never from inside a call to this
 * file, and may call anything here, conn_free too. Before the other side has proved the token
 * nothing of it is parsed but a hello of fixed size, within `hello_us`. */
#ifndef SOLO_OS_CONN_H
#define SOLO_OS_CONN_H

#include "os/addr.h"
#include "os/loop.h"
#include "wire/frame.h"
#include "wire/hello.h"

#define CONN_HELLO_US   5000000u        /* connecting and handshake, unless told otherwise */
#define CONN_SENDS_MAX  256u            /* frames that wait to be sent */
#define CONN_COPIED_MAX (4u << 20)      /* bytes of copied payloads that wait to be sent */
#define CONN_INBOX_MAX  FRAME_TABLE_MAX /* largest payload for which `place` may give no room */

struct conn;

/* What `place` may answer too: shared memory: leave the payload where it is. `place` is asked again
 * once all of it is there, and after the same answer `frame` is called with it. */
#define CONN_IN_PLACE 2

/* NULL is allowed for `open`, `place`, `sent` and `room`. After `lost` the connection is closed
 * and calls nothing more; conn_free is still the owner's. */
struct conn_calls {
    void (*open)(void *context, struct conn *conn); /* both sides have proved the token */
    /* Where this frame's payload shall go: frame->size bytes of room, borrowed until `frame`,
     * `lost`, or conn_divert. *room_out is NULL on entry; left so: the connection's own buffer,
     * up to CONN_INBOX_MAX. SOLO_EAGAIN: not now; reading stops until conn_resume and asks
     * again. 1: skip it, `frame` is not called. CONN_IN_PLACE: see there. Errors close the
     * connection. Not called for frames without payload. */
    int (*place)(void *context, struct conn *conn, const struct frame *frame, void **room_out);
    /* A whole frame, its checksum right. `payload` is what place gave; without: valid during
     * the call. An error closes the connection. */
    int (*frame)(void *context, struct conn *conn, const struct frame *frame, const void *payload);
    void (*sent)(void *context, struct conn *conn, uint64_t tag); /* the payload is yours again */
    void (*room)(void *context, struct conn *conn); /* few frames wait: a moment for more */
    /* Over: rc and text say why. SOLO_ECLOSED: the other side closed between two frames.
     * Borrowed payloads and rooms are the caller's again. */
    void (*lost)(void *context, struct conn *conn, int rc, const char *text);
};

struct conn_config {
    struct loop *loop;
    const char *job_id; /* borrowed while the connection lives, as are token and calls */
    const char *token;  /* NULL: none: then loopback and this host alone, unless insecure */
    bool insecure;
    uint32_t roles;    /* 1u << HELLO_...: what we dial as; what we accept */
    uint64_t hello_us; /* 0: CONN_HELLO_US */
    /* TCP: the other side's end is told only once all it sent was read, however long reading
     * is paused; else a death is told at once and what was not read is lost. */
    bool patient;
    const struct conn_calls *calls;
    void *context;
};

/* Connects to the first address of the name that answers. The outcome comes as open or lost.
 * Gives *out: conn_free. */
int conn_dial(const struct conn_config *config, const struct solo_url *to, struct conn **out);

/* The same over shared memory, to the door that has this port on this host. Its local name has
 * the scope of the network namespace, as the port has, and a segment that both have mapped is
 * the proof of one host. SOLO_ENOENT: there is none (conn_dial then). */
int conn_dial_local(const struct conn_config *config, uint16_t port, struct conn **out);

/* The other side of an accepted socket (TCP or AF_UNIX), which it takes, also on an error.
 * SOLO_EAUTH: the address is not loopback and there is no token. Gives *out. */
int conn_accept(const struct conn_config *config, int fd, const struct addr *from,
                struct conn **out);

/* From now on these callbacks. Allowed inside a callback too. */
void conn_adopt(struct conn *conn, const struct conn_calls *calls, void *context);
void conn_be_patient(struct conn *conn); /* as config.patient, for one that was accepted */

/* Sends a frame: its fields from `frame`, size and checksum filled in here (a payload_crc that
 * is not 0 is taken as right). Borrows `payload` until `sent` with this tag, or `lost`. Never
 * blocks, never calls back. SOLO_EAGAIN: CONN_SENDS_MAX frames wait. SOLO_ECLOSED: not open. */
int conn_send(struct conn *conn, const struct frame *frame, const void *payload, size_t size,
              uint64_t tag);

/* The same with a copy of the payload; `sent` is not called. SOLO_EAGAIN: CONN_COPIED_MAX. */
int conn_send_copy(struct conn *conn, const struct frame *frame, const void *payload, size_t size);

/* Shared memory: where the payload of the next frame may be made, if `spare` bytes are free behind
 * it; conn_send with that address then copies nothing, and overtakes frames that wait. Good until
 * the next call of conn_room or conn_send. SOLO_EAGAIN: not now; `room` is called when it may be
 * worth asking again. SOLO_ENOTSUP: never for this size or connection. */
int conn_room(struct conn *conn, size_t size, size_t spare, void **out);
bool conn_offered(const struct conn *conn, const void *payload); /* it is that address */

uint32_t conn_waiting(const struct conn *conn); /* frames not handed to the kernel yet */
void conn_resume(struct conn *conn);            /* after place said SOLO_EAGAIN */

/* Nothing is written to [base, base + size) any more: a payload on its way there is skipped. */
void conn_divert(struct conn *conn, const void *base, size_t size);

/* The other way: nothing is borrowed from [base, base + size) any more. What waits from there is
 * finished from copies, and `sent` is not called for it. SOLO_ENOMEM: free the connection. */
int conn_forget(struct conn *conn, const void *base, size_t size);

/* Sends what waits, then closes; `lost` with SOLO_ECLOSED follows, at the latest at the
 * deadline. Nothing more can be sent; frames still arrive until then. */
void conn_finish(struct conn *conn, uint64_t deadline_us);

/* Closes at once and frees; nothing is called any more. NULL is allowed. */
void conn_free(struct conn *conn);

bool conn_is_open(const struct conn *conn);
bool conn_is_shm(const struct conn *conn);
enum hello_role conn_role(const struct conn *conn);  /* after open */
enum solo_reach conn_reach(const struct conn *conn); /* how far it got, for messages */
const char *conn_peer(const struct conn *conn);      /* "10.0.0.4:41822" */
uint32_t conn_rtt_us(const struct conn *conn);       /* 0: unknown */
uint64_t conn_sent_bytes(const struct conn *conn);
uint64_t conn_received_bytes(const struct conn *conn);

#endif
