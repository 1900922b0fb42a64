/* transport.h - how a connection's bytes go in and out: the one place where plain sockets,
 * shared memory, and later TLS differ.
 *
 * Threads: loop thread only. Nothing blocks. */
#ifndef SOLO_OS_TRANSPORT_H
#define SOLO_OS_TRANSPORT_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "os/ring.h"
#include "os/shm.h"

struct transport;

struct transport_calls {
    /* Bytes read or written, at least 1. SOLO_EAGAIN: wait for the descriptor. SOLO_ECLOSED: the
     * other side closed in good order, or is gone; other errors: with a text. */
    ssize_t (*read)(struct transport *transport, void *at, size_t size);
    ssize_t (*write)(struct transport *transport, const struct iovec *parts, int count);
};

struct transport {
    const struct transport_calls *calls;
    int fd; /* the socket; with shared memory it carries door bells and the news of a death */
    struct shm shm;
    struct ring in, out;
    bool hangup; /* shared memory: the socket was closed at the other end */
};

void transport_socket(struct transport *transport, int fd); /* takes the descriptor */

/* Switches an AF_UNIX transport to shared memory. The dialing side offers a segment and is
 * answered with one byte; the accepting side receives it when the socket is readable. */
int transport_offer(struct transport *transport);
int transport_accept(struct transport *transport);   /* SOLO_EAGAIN: not there yet */
int transport_accepted(struct transport *transport); /* the answer; SOLO_EAGAIN: not yet */

/* Shared memory alone: bytes are used and made where they lie; as ring_peek, ring_take, ring_room
 * and ring_put. Also SOLO_ECLOSED: the other side is gone, and they will not come. */
int64_t transport_peek(struct transport *transport, size_t size, const uint8_t **out);
void transport_take(struct transport *transport, size_t size);
int64_t transport_room(struct transport *transport, size_t size, size_t spare, uint8_t **out);
void transport_put(struct transport *transport, size_t size);

/* Shared memory: the socket is readable: takes the door bells and notices a hangup. */
void transport_bell(struct transport *transport);
void transport_shut(struct transport *transport); /* sends no more: the other side reads an end */
bool transport_is_shm(const struct transport *transport);
void transport_close(struct transport *transport, bool abrupt); /* abrupt: TCP sends a reset */

#endif
