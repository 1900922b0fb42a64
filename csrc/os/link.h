/* link.h - one peer: frames over up to LINK_STREAMS_MAX sockets, or shared memory on one host.
 *
 * Threads: loop thread only; callbacks as in conn.h. Frames keep no order among each other
 * (each says what it is), and whichever stream is writable takes the next, so the slowest
 * costs its share only. Every frame that was sent arrives once, or the link is lost.
 *
 * The loss of any stream is the loss of the link. A frame may have arrived before its stream
 * broke, so sending it again would need acknowledgements and a memory of what came; and a
 * broken stream nearly always is a dead peer or path, after which the round is run again
 * anyway. A further stream that cannot be opened is no loss: the link goes on with the others. */
#ifndef SOLO_OS_LINK_H
#define SOLO_OS_LINK_H

#include "os/conn.h"

#define LINK_STREAMS_MAX  64u
#define LINK_SENDS_MAX    4096u      /* frames that wait in a link */
#define LINK_GREETING_MAX 256u       /* payload of the greeting */
#define LINK_HALF_BYTES   (2u << 20) /* of what a link in shared memory holds in one direction */
#define LINK_DRAIN_US     2000000u   /* streams of a link that closes end within this time */

struct link;

/* As conn_calls, for the link as a whole; all but `frame` and `lost` may be NULL. */
struct link_calls {
    void (*open)(void *context, struct link *link); /* dialing side: the first stream stands */
    int (*place)(void *context, struct link *link, const struct frame *frame, void **room_out);
    int (*frame)(void *context, struct link *link, const struct frame *frame, const void *payload);
    void (*sent)(void *context, struct link *link, uint64_t tag);
    void (*room)(void *context, struct link *link); /* link_room may have some now;
                                                         the link may not be freed here */
    void (*lost)(void *context, struct link *link, int rc, const char *text);
};

struct link_config {
    struct loop *loop;
    const char *job_id, *token; /* borrowed while the link lives */
    bool insecure;
    enum hello_role role;
    const struct link_calls *calls;
    void *context;
    uint32_t streams;     /* TCP connections; 0: as many as bandwidth and round trip want */
    uint32_t streams_max; /* then so many at most; 0: LINK_STREAMS_MAX */
    bool shm;             /* shared memory when the peer is on this host */
    uint64_t hello_us;    /* 0: CONN_HELLO_US */
    bool patient;         /* as in conn_config; also no deadline for streams that still deliver */
    /* Dialing side: sent first on each stream, so that the other side's door knows whose it is
     * (FRAME_LINK). Copied. */
    const struct frame *greeting;
    const void *greeting_payload;
    size_t greeting_size;
};

/* Dials: this side opens all streams. The outcome comes as open or lost. Gives *out: link_free. */
int link_dial(const struct link_config *config, const struct solo_url *to, struct link **out);

/* The accepting side, from a door's admit: takes the first connection; link_add the others.
 * Both adopt the connection. Frames may be sent at once. */
int link_accept(const struct link_config *config, struct conn *first, struct link **out);
int link_add(struct link *link, struct conn *conn); /* SOLO_ELIMIT, SOLO_ECLOSED: not taken */

/* Borrows `payload` until `sent` with this tag, or `lost`. Never blocks, never calls back. May
 * be called before open. SOLO_EAGAIN: LINK_SENDS_MAX frames wait. SOLO_ECLOSED: lost. */
int link_send(struct link *link, const struct frame *frame, const void *payload, size_t size,
              uint64_t tag);

/* As conn_room, where the one stream is shared memory; frames that wait in the link have the
 * precedence. */
int link_room(struct link *link, size_t size, size_t spare, void **out);

void link_resume(struct link *link); /* after place said SOLO_EAGAIN */
/* Nothing is written to [base, base + size) any more: payloads on their way there are skipped. */
void link_divert(struct link *link, const void *base, size_t size);
/* Nothing is borrowed from there any more: frames that wait are dropped, those that a stream has
 * begun are finished from copies; `sent` is called for none. SOLO_ENOMEM: free the link. */
int link_forget(struct link *link, const void *base, size_t size);
void link_finish(struct link *link, uint64_t deadline_us); /* sends what waits, then lost */
void link_free(struct link *link); /* at once; nothing is called any more; NULL is allowed */

/* In `place`: another stream is in the middle of a frame that says it is the same one. */
bool link_arrives(const struct link *link, const struct frame *frame);
bool link_is_open(const struct link *link);
bool link_is_shm(const struct link *link);
bool link_in_place(const struct link *link, size_t size); /* `place` may answer CONN_IN_PLACE */
uint32_t link_streams(const struct link *link);           /* that stand now */
uint32_t link_rtt_us(const struct link *link);
uint64_t link_sent_bytes(const struct link *link);
uint64_t link_received_bytes(const struct link *link);

#endif
