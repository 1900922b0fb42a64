/* door.h - one listening port: accepts, bounds who has not proved the token yet, and hands
 * over connections that have.
 *
 * Threads: loop thread only. */
#ifndef SOLO_OS_DOOR_H
#define SOLO_OS_DOOR_H

#include "os/conn.h"

/* Connections in the handshake at a time; one more closes the oldest of them, so that silent
 * ones do not keep honest ones out. */
#define DOOR_PENDING_MAX 64u

struct door;

struct door_calls {
    /* A proved connection. Take it: conn_adopt with the owner's callbacks; or refuse with a
     * negative code and it is closed. */
    int (*admit)(void *context, struct conn *conn, const struct hello *peer);
    /* Somebody who was not let in, and why. May be NULL. */
    void (*refused)(void *context, const char *peer, int rc, const char *text);
};

struct door_config {
    struct loop *loop;
    const struct auth_key *key; /* borrowed while the door is open */
    const struct hello *hello;  /* copied */
    const struct door_calls *calls;
    void *context;
    int listen_fd; /* listening; taken, also on an error */
};

int door_open(const struct door_config *config, struct door **out); /* gives *out: door_close */
void door_close(struct door *door); /* admitted connections live on; NULL is allowed */
uint16_t door_port(const struct door *door);
uint32_t door_pending(const struct door *door);

#endif
