#include "os/door.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "os/conn_inside.h"
#include "os/shm.h"
#include "os/sock.h"

enum { ACCEPTS_PER_TURN = 32, REST_US = 100000 };

struct guest { /* somebody in the handshake; a slot is free while conn is NULL */
    struct door *door;
    struct conn *conn;
    struct loop_timer timeout; /* from the proof to the first frame */
    uint64_t number;           /* the how-manieth that came */
};

struct door {
    struct door_config config;
    struct loop_io tcp, local; /* local.fd -1: no shared memory here */
    struct loop_timer rest;    /* out of descriptors: the port is not watched for a while */
    uint16_t port;
    uint64_t came; /* guests, ever */
    struct guest guests[DOOR_PENDING_MAX];
};

static void dismiss(struct guest *guest)
{
    loop_timer_cancel(guest->door->config.loop, &guest->timeout);
    conn_free(guest->conn);
    guest->conn = NULL;
}

static void tell_refused(struct door *door, const char *peer, int rc, const char *text)
{
    if (door->config.calls->refused) {
        door->config.calls->refused(door->config.context, peer, rc, text);
    }
}

/* ---- a guest's first words -------------------------------------------------------------- */

static void on_guest_open(void *context, struct conn *conn)
{
    struct guest *guest = context;
    struct loop *loop = guest->door->config.loop;
    (void)conn;
    loop_timer_set(loop, &guest->timeout, loop_now(loop) + guest->door->config.hello_us);
}

static int on_first_frame(void *context, struct conn *conn, const struct frame *frame,
                          const void *payload)
{
    struct guest *guest = context;
    const struct door_config *config = &guest->door->config;
    loop_timer_cancel(config->loop, &guest->timeout);
    guest->conn = NULL; /* the slot is free */
    int rc = config->calls->admit(config->context, conn, frame, payload);
    if (rc < 0) {
        char text[SOLO_TEXT_MAX];
        snprintf(text, sizeof text, "%s", err_text());
        tell_refused(guest->door, conn_peer(conn), rc, text);
        conn_free(conn);
    } else {
        MUST(conn->config.context != guest); /* adopted */
    }
    return 0;
}

/* Closes a guest and says so; rc and this thread's error text tell why. */
static void turn_away(struct guest *guest, int rc, const char *reason)
{
    char peer[ADDR_TEXT_MAX], text[SOLO_TEXT_MAX];
    snprintf(peer, sizeof peer, "%s", conn_peer(guest->conn));
    snprintf(text, sizeof text, "%s", reason);
    dismiss(guest);
    tell_refused(guest->door, peer, rc, text);
}

static void on_guest_lost(void *context, struct conn *conn, int rc, const char *text)
{
    (void)conn;
    turn_away(context, rc, text);
}

static void on_guest_timeout(void *context)
{
    turn_away(context, SOLO_ETIMEDOUT, "proved the token, then said nothing");
}

static const struct conn_calls guest_calls = {
    .open = on_guest_open, .frame = on_first_frame, .lost = on_guest_lost};

/* ---- accepting -------------------------------------------------------------------------- */

/* A free slot, or the oldest guest's. */
static struct guest *make_room(struct door *door)
{
    struct guest *oldest = &door->guests[0];
    for (uint32_t i = 0; i < DOOR_PENDING_MAX; i++) {
        struct guest *guest = &door->guests[i];
        if (!guest->conn) {
            return guest;
        }
        oldest = guest->number < oldest->number ? guest : oldest;
    }
    turn_away(oldest, SOLO_ELIMIT, "closed: too many came after it, and it had not spoken yet");
    return oldest;
}

static void let_in(struct door *door, int fd, const struct addr *from)
{
    const struct door_config *config = &door->config;
    struct guest *guest = make_room(door);
    struct conn_config conn = {.loop = config->loop,
                               .job_id = config->job_id,
                               .token = config->token,
                               .insecure = config->insecure,
                               .roles = config->roles,
                               .hello_us = config->hello_us,
                               .calls = &guest_calls,
                               .context = guest};
    int rc = conn_accept(&conn, fd, from, &guest->conn);
    if (rc < 0) {
        char peer[ADDR_TEXT_MAX], text[SOLO_TEXT_MAX];
        addr_text(from, peer);
        snprintf(text, sizeof text, "%s", err_text());
        tell_refused(door, peer, rc, text);
        return;
    }
    guest->number = door->came++;
}

/* Out of descriptors: the backlog waits, instead of waking us without end. */
static void rest(struct door *door)
{
    struct loop *loop = door->config.loop;
    loop_unwatch(loop, &door->tcp);
    loop_unwatch(loop, &door->local);
    loop_timer_set(loop, &door->rest, loop_now(loop) + REST_US);
    tell_refused(door, "?", SOLO_ESYS, err_text());
}

static int watch(struct door *door)
{
    TRY(loop_watch(door->config.loop, &door->tcp, EPOLLIN));
    return door->local.fd < 0 ? 0 : loop_watch(door->config.loop, &door->local, EPOLLIN);
}

static void on_rested(void *context)
{
    if (watch(context) < 0) { /* or nobody would ever be let in again */
        rest(context);
    }
}

static void on_tcp(void *context, uint32_t events)
{
    struct door *door = context;
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct addr from;
        int fd = -1, rc = sock_accept(door->tcp.fd, &fd, &from);
        if (rc == SOLO_EAGAIN) {
            return;
        }
        if (rc < 0) {
            rest(door);
            return;
        }
        let_in(door, fd, &from);
    }
}

static void on_local(void *context, uint32_t events)
{
    struct door *door = context;
    struct addr from = {.bytes = {.ss_family = AF_UNIX}};
    int fd = -1, rc = shm_accept(door->local.fd, &fd);
    (void)events;
    if (rc == 0) {
        let_in(door, fd, &from);
    } else if (rc != SOLO_EAGAIN) {
        rest(door);
    }
}

/* ---- life ------------------------------------------------------------------------------- */

/* Without the local twin the port still works: peers on this host then use TCP. */
static int open_local(struct door *door)
{
    char name[CONN_LOCAL_NAME_MAX];
    conn_local_name(door->port, name);
    int rc = shm_listen(name, &door->local.fd);
    return rc < 0 ? rc : loop_watch(door->config.loop, &door->local, EPOLLIN);
}

int door_open(const struct door_config *config, struct door **out)
{
    struct door *door = calloc(1, sizeof *door);
    if (!door) {
        close(config->listen_fd);
        return err_set(SOLO_ENOMEM, "no memory for a listening port");
    }
    door->config = *config;
    door->config.hello_us = config->hello_us ? config->hello_us : CONN_HELLO_US;
    door->tcp = (struct loop_io){.fn = on_tcp, .context = door, .fd = config->listen_fd};
    door->local = (struct loop_io){.fn = on_local, .context = door, .fd = -1};
    door->rest = (struct loop_timer){.fn = on_rested, .context = door};
    for (uint32_t i = 0; i < DOOR_PENDING_MAX; i++) {
        struct guest *guest = &door->guests[i];
        guest->door = door;
        guest->timeout = (struct loop_timer){.fn = on_guest_timeout, .context = guest};
    }
    struct addr bound;
    int rc = sock_local(config->listen_fd, &bound);
    if (rc == 0) {
        door->port = addr_port(&bound);
        rc = loop_watch(config->loop, &door->tcp, EPOLLIN);
    }
    if (rc < 0) {
        door_close(door);
        return rc;
    }
    open_local(door);
    *out = door;
    return 0;
}

void door_close(struct door *door)
{
    if (!door) {
        return;
    }
    struct loop *loop = door->config.loop;
    for (uint32_t i = 0; i < DOOR_PENDING_MAX; i++) {
        if (door->guests[i].conn) {
            dismiss(&door->guests[i]);
        }
    }
    loop_timer_cancel(loop, &door->rest);
    loop_unwatch(loop, &door->tcp);
    loop_unwatch(loop, &door->local);
    close(door->tcp.fd);
    if (door->local.fd >= 0) {
        close(door->local.fd);
    }
    free(door);
}

uint16_t door_port(const struct door *door)
{
    return door->port;
}

uint32_t door_pending(const struct door *door)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < DOOR_PENDING_MAX; i++) {
        count += door->guests[i].conn != NULL;
    }
    return count;
}
