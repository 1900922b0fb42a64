/* link.h - one peer: frames over up to LINK_STREAMS_MAX sockets, or shared memory on one host.
 *
 * Threads: loop thread only; callbacks as in conn.h. Frames keep no order among each other
 * (each says what it is); every frame that was sent arrives once, or the link is lost. The loss
 * of any stream is the loss of the link: a frame may have arrived before its stream broke, so
 * sending it again would need acknowledgements and a memory of what came; and a broken stream
 * nearly always is a dead peer or path, where the round is run again anyway. A further stream
 * that cannot be opened is no loss: the link goes on with those it has. */
#ifndef SOLO_OS_LINK_H
#define SOLO_OS_LINK_H

#include "os/conn.h"

#define LINK_STREAMS_MAX 64u
#define LINK_SENDS_MAX   1024u /* frames that wait in a link */

struct link;

struct link_calls { /* as conn_calls, for the link as a whole */
    void (*open)(void *context, struct link *link); /* the first stream stands */
    int (*place)(void *context, struct link *link, const struct frame *frame, void **room_out);
    int (*frame)(void *context, struct link *link, const struct frame *frame,
                 const void *payload);
    void (*sent)(void *context, struct link *link, uint64_t tag);
    void (*lost)(void *context, struct link *link, int rc, const char *text);
};

struct link_config {
    struct loop *loop;
    const struct auth_key *key;
    const struct hello *hello; /* copied */
    const struct link_calls *calls;
    void *context;
    uint32_t streams; /* TCP connections; 0: as many as bandwidth and round trip want */
    int shm;          /* 1: shared memory when the peer is on this host */
};

/* Dials: the side that opens connects all streams. Gives *out: link_free. */
int link_dial(const struct link_config *config, const struct solo_url *to, struct link **out);

/* The accepting side: takes the first connection that a door admitted; link_add the others. */
int link_accept(const struct link_config *config, struct conn *first, struct link **out);
int link_add(struct link *link, struct conn *conn);

/* Borrows `payload` until `sent` with this tag, or `lost`. Never blocks, never calls back.
 * SOLO_EAGAIN: LINK_SENDS_MAX frames wait. SOLO_ECLOSED: the link is lost. */
int link_send(struct link *link, const struct frame *frame, const void *payload, uint64_t tag);

void link_resume(struct link *link); /* after place said SOLO_EAGAIN */
void link_finish(struct link *link, uint64_t deadline_us); /* sends what waits, then lost */
void link_free(struct link *link); /* at once; nothing is called any more; NULL is allowed */

bool link_is_shm(const struct link *link);
uint32_t link_streams(const struct link *link); /* that stand now */
uint32_t link_waiting(const struct link *link); /* frames not handed to the kernel yet */
uint32_t link_rtt_us(const struct link *link);
uint64_t link_sent_bytes(const struct link *link);
uint64_t link_received_bytes(const struct link *link);
const char *link_peer_text(const struct link *link);

/* Streams for a path: streams * send_bytes_max >= bandwidth * rtt (collective rule of thumb:
 * one or two on a LAN, more where the round trip is long). */
uint32_t link_streams_for(uint64_t bytes_per_s, uint32_t rtt_us, uint64_t send_bytes_max);

#endif
