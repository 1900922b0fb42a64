#include "os/conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "os/auth.h"
#include "os/conn_inside.h"
#include "os/host.h"
#include "os/sock.h"

/* ---- ends ------------------------------------------------------------------------------- */

static void close_all(struct conn *conn)
{
    struct loop *loop = conn->config.loop;
    /* Given up in the middle of sending: the other side hears it at once, and not only when
     * it has read what is on its way. */
    bool abrupt = conn->state == CONN_OPEN && conn->outbox.count > 0;
    dial_cancel(conn->dial);
    conn->dial = NULL;
    loop_timer_cancel(loop, &conn->deadline);
    loop_later_cancel(loop, &conn->pump);
    loop_unwatch(loop, &conn->io);
    transport_close(&conn->transport, abrupt);
    outbox_clear(&conn->outbox);
    conn->room = NULL;
    conn->offered = NULL;
    conn->state = CONN_LOST;
}

static void enter(struct conn *conn)
{
    conn->busy++;
}

static void leave(struct conn *conn)
{
    if (--conn->busy == 0 && conn->freed) {
        free(conn->inbox);
        free(conn);
    }
}

void conn_free(struct conn *conn)
{
    if (conn && !conn->freed) {
        enter(conn);
        close_all(conn);
        conn->freed = true;
        leave(conn);
    }
}

void conn_fail(struct conn *conn, int rc)
{
    char text[SOLO_TEXT_MAX];
    if (conn->state == CONN_LOST) {
        return;
    }
    snprintf(text, sizeof text, "%.60s: %.440s", conn->peer, err_text());
    close_all(conn);
    conn->config.calls->lost(conn->config.context, conn, rc, text);
}

static void on_deadline(void *context)
{
    struct conn *conn = context;
    enter(conn);
    if (conn->state == CONN_OPEN) { /* of conn_finish */
        conn_fail(conn, err_set(SOLO_ECLOSED, "closed; the other side did not close in time"));
    } else {
        conn->reach = SOLO_NO_ANSWER;
        conn_fail(conn, err_set(SOLO_ETIMEDOUT,
                                "connected, but no handshake followed within "
                                "%u ms: another service, or a stopped process?",
                                (unsigned)(conn->config.hello_us / 1000)));
    }
    leave(conn);
}

/* ---- handshake -------------------------------------------------------------------------- */

static void become_open(struct conn *conn)
{
    conn->state = CONN_OPEN;
    conn->reach = SOLO_REACHED;
    conn->io.guessed = !transport_is_shm(&conn->transport);
    loop_timer_cancel(conn->config.loop, &conn->deadline);
    frame_reader_init(&conn->reader);
    if (transport_is_shm(&conn->transport)) { /* the first look leaves the mark that asks for a
                                                 bell: what was written before rang none */
        conn->more_input = true;
        loop_later(conn->config.loop, &conn->pump);
    }
    if (conn->config.calls->open) {
        conn->config.calls->open(conn->config.context, conn);
    }
}

/* Both tokens are proved. On this host the bytes now move to shared memory. */
static int proved(struct conn *conn)
{
    if (conn->peer_addr.bytes.ss_family != AF_UNIX) {
        become_open(conn);
        return 0;
    }
    conn->state = CONN_SHARING;
    return conn->dialed ? transport_offer(&conn->transport) : 0;
}

/* Sends what the handshake has to say, which a fresh socket always has room for. */
static int hello_write(struct conn *conn)
{
    size_t size;
    const uint8_t *out = hello_out(&conn->hello, &size);
    while (conn->hello_sent < size) {
        struct iovec part = {(uint8_t *)(uintptr_t)out + conn->hello_sent, size - conn->hello_sent};
        ssize_t count = conn->transport.calls->write(&conn->transport, &part, 1);
        if (count < 0) {
            return (int)count;
        }
        conn->hello_sent += (size_t)count;
    }
    if (size > 0) {
        conn->hello_sent = 0;
        hello_sent(&conn->hello);
    }
    return 0;
}

static int hello_read(struct conn *conn)
{
    uint8_t bytes[HELLO_BYTES_MAX];
    size_t want = hello_want(&conn->hello);
    ssize_t count = conn->transport.calls->read(&conn->transport, bytes, want);
    if (count == SOLO_ECLOSED) {
        conn->reach = SOLO_NOT_SOLO;
        return err_set(SOLO_ECLOSED, "closed by the other side during the handshake: it is another "
                                     "service, or lets nobody in from here without a token "
                                     "(--token_file, or --insecure on all nodes)");
    }
    if (count < 0) {
        return (int)count;
    }
    int rc = hello_feed(&conn->hello, bytes, (size_t)count);
    if (rc < 0) {
        char text[SOLO_TEXT_MAX];
        snprintf(text, sizeof text, "%s", err_text());
        conn->reach = conn->hello.reach;
        hello_write(conn); /* the reason, for the other side, if it goes out at once */
        err_set(rc, "%s", text);
    }
    return rc;
}

/* As far as it gets: SOLO_EAGAIN to wait, or an error. */
static int shake_hands(struct conn *conn)
{
    while (conn->state == CONN_HELLO) {
        TRY(hello_write(conn));
        if (hello_over(&conn->hello)) {
            return proved(conn);
        }
        TRY(hello_read(conn));
    }
    if (conn->state == CONN_SHARING) {
        TRY(conn->dialed ? transport_accepted(&conn->transport)
                         : transport_accept(&conn->transport));
        become_open(conn);
    }
    return 0;
}

static int hello_start(struct conn *conn)
{
    struct hello_config config = {.token = conn->config.token,
                                  .job_id = conn->config.job_id,
                                  .roles = conn->config.roles,
                                  .hmac = auth_hmac};
    TRY(host_random(config.nonce, sizeof config.nonce));
    if (conn->dialed) {
        hello_client(&conn->hello, &config);
    } else {
        hello_server(&conn->hello, &config);
    }
    conn->state = CONN_HELLO;
    conn->reach = SOLO_NOT_SOLO; /* until the other side has shown that it is */
    return 0;
}

/* ---- events ----------------------------------------------------------------------------- */

void conn_rewatch(struct conn *conn)
{
    if (conn->state == CONN_LOST || conn->state == CONN_DIALING || conn->freed) {
        return;
    }
    if (conn->paused && conn->ended) { /* epoll would report the hang-up without end */
        loop_unwatch(conn->config.loop, &conn->io);
        return;
    }
    uint32_t events = EPOLLIN;
    if (conn->state == CONN_OPEN && !transport_is_shm(&conn->transport)) {
        /* Most pauses are over before the next turn: two calls of the kernel saved. */
        conn->nagged &= conn->paused;
        events = conn->nagged ? EPOLLRDHUP : EPOLLIN;
        events |= conn->blocked ? EPOLLOUT : 0u;
    }
    int rc = loop_watch(conn->config.loop, &conn->io, events);
    if (rc < 0) {
        conn_fail(conn, rc);
    }
}

/* A death is told at once, also while reading is paused: what was not read then is lost. Who is
 * patient does not look until reading goes on. */
static void notice_end_while_paused(struct conn *conn, uint32_t events)
{
    bool ended = transport_is_shm(&conn->transport)
                     ? conn->transport.hangup
                     : (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (conn->paused && ended && conn->config.patient && !transport_is_shm(&conn->transport)) {
        conn->ended = true;
    } else if (conn->paused && ended) {
        conn_fail(conn, err_set(SOLO_ESYS, "the other side closed the connection"));
    }
}

/* No events: the loop guesses that there is something to read. */
static void on_io(void *context, uint32_t events)
{
    struct conn *conn = context;
    enter(conn);
    if (conn->state != CONN_OPEN) {
        int rc = shake_hands(conn);
        if (rc < 0 && rc != SOLO_EAGAIN && !conn->freed) {
            conn_fail(conn, rc);
        }
    } else {
        if (transport_is_shm(&conn->transport)) {
            transport_bell(&conn->transport);
        }
        notice_end_while_paused(conn, events);
        conn->nagged |= conn->paused && (events & EPOLLIN);
        conn_receive(conn);
        bool wants = conn->blocked || conn->outbox.count > 0 || conn->room_wanted;
        if (conn_alive(conn) && wants && events) { /* a guess is about reading */
            conn_flush(conn);
        }
    }
    conn_rewatch(conn);
    leave(conn);
}

static void on_pump(void *context)
{
    struct conn *conn = context;
    enter(conn);
    if (conn_alive(conn)) {
        conn_flush(conn);
    }
    if (conn_alive(conn) && conn->more_input) {
        conn_receive(conn);
    }
    conn_rewatch(conn);
    leave(conn);
}

static void on_dialed(void *context, int rc, int fd, const struct addr *to, enum solo_reach reach)
{
    struct conn *conn = context;
    conn->dial = NULL;
    conn->reach = reach;
    enter(conn);
    if (rc == 0) {
        conn->peer_addr = *to;
        addr_text(to, conn->peer);
        sock_suit_path(fd);
        transport_socket(&conn->transport, fd);
        conn->io.fd = fd;
        rc = hello_start(conn);
        rc = rc < 0 ? rc : shake_hands(conn);
    }
    if (rc < 0 && rc != SOLO_EAGAIN && !conn->freed) {
        conn_fail(conn, rc);
    }
    conn_rewatch(conn);
    leave(conn);
}

/* ---- beginnings ------------------------------------------------------------------------- */

static int conn_new(const struct conn_config *config, bool dialed, struct conn **out)
{
    struct conn *conn = calloc(1, sizeof *conn);
    if (!conn) {
        err_set(SOLO_ENOMEM, "no memory for a connection");
        return SOLO_ENOMEM;
    }
    MUST(config->calls->frame && config->calls->lost);
    conn->config = *config;
    conn->config.hello_us = config->hello_us ? config->hello_us : CONN_HELLO_US;
    conn->dialed = dialed;
    conn->reach = SOLO_NO_NAME;
    conn->transport.fd = conn->transport.shm.fd = -1;
    conn->io = (struct loop_io){.fn = on_io, .context = conn, .fd = -1};
    conn->deadline = (struct loop_timer){.fn = on_deadline, .context = conn};
    conn->pump = (struct loop_task){.fn = on_pump, .context = conn};
    loop_timer_set(config->loop, &conn->deadline, clock_us() + conn->config.hello_us);
    *out = conn;
    return 0;
}

static bool loopback_only(const struct conn_config *config)
{
    return !config->insecure && !(config->token && *config->token);
}

int conn_dial(const struct conn_config *config, const struct solo_url *to, struct conn **out)
{
    struct conn *conn = NULL;
    TRY(conn_new(config, true, &conn));
    snprintf(conn->peer, sizeof conn->peer, "%.50s:%u", to->host, to->port);
    /* A quarter of the time is the handshake's: a host that does not answer is then told apart
     * from one that answers and says nothing. */
    uint64_t dial_us = clock_us() + conn->config.hello_us / 4 * 3;
    int rc =
        dial_start(config->loop, to, loopback_only(config), dial_us, on_dialed, conn, &conn->dial);
    if (rc < 0) {
        conn_free(conn);
        return rc;
    }
    *out = conn;
    return 0;
}

/* From a connected socket on: watches it and begins the handshake in the loop. */
static int begin(struct conn *conn, int fd, const struct addr *peer)
{
    conn->peer_addr = *peer;
    addr_text(peer, conn->peer);
    transport_socket(&conn->transport, fd);
    conn->io.fd = fd;
    TRY(hello_start(conn));
    return loop_watch(conn->config.loop, &conn->io, conn->dialed ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static const struct addr this_host = {.bytes = {.ss_family = AF_UNIX}};

/* One process of a network namespace has this port, and abstract names have its scope too. */
void conn_local_name(uint16_t port, char out[CONN_LOCAL_NAME_MAX])
{
    snprintf(out, CONN_LOCAL_NAME_MAX, "solo/%u", port);
}

int conn_dial_local(const struct conn_config *config, uint16_t port, struct conn **out)
{
    char name[CONN_LOCAL_NAME_MAX];
    int fd = -1;
    conn_local_name(port, name);
    TRY(shm_connect(name, &fd));
    struct conn *conn = NULL;
    int rc = conn_new(config, true, &conn);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    rc = begin(conn, fd, &this_host);
    if (rc < 0) {
        conn_free(conn);
        return rc;
    }
    *out = conn;
    return 0;
}

int conn_accept(const struct conn_config *config, int fd, const struct addr *from,
                struct conn **out)
{
    struct conn *conn = NULL;
    int rc = conn_new(config, false, &conn);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    rc = begin(conn, fd, from);
    if (rc == 0 && loopback_only(config) && !addr_is_loopback(from)) {
        rc = err_set(SOLO_EAUTH,
                     "%s is not on this host: without a token only loopback is let "
                     "in; give all nodes the same --token_file, or --insecure",
                     conn->peer);
    }
    if (rc == 0 && from->bytes.ss_family != AF_UNIX) {
        rc = sock_options(fd);
        sock_suit_path(fd);
    }
    if (rc < 0) {
        conn_free(conn);
        return rc;
    }
    *out = conn;
    return 0;
}

void conn_adopt(struct conn *conn, const struct conn_calls *calls, void *context)
{
    MUST(calls->frame && calls->lost);
    conn->config.calls = calls;
    conn->config.context = context;
}

void conn_be_patient(struct conn *conn)
{
    conn->config.patient = true;
}

void conn_finish(struct conn *conn, uint64_t deadline_us)
{
    if (conn->state == CONN_OPEN) {
        conn->finishing = true;
        loop_timer_set(conn->config.loop, &conn->deadline, deadline_us);
        loop_later(conn->config.loop, &conn->pump);
    } else if (conn->state != CONN_LOST) { /* nothing can wait before it is open */
        loop_timer_set(conn->config.loop, &conn->deadline, 0);
    }
}

/* ---- questions -------------------------------------------------------------------------- */

bool conn_is_open(const struct conn *conn)
{
    return conn->state == CONN_OPEN;
}

bool conn_is_shm(const struct conn *conn)
{
    return transport_is_shm(&conn->transport);
}

enum hello_role conn_role(const struct conn *conn)
{
    return conn->hello.role;
}

enum solo_reach conn_reach(const struct conn *conn)
{
    return conn->reach;
}

const char *conn_peer(const struct conn *conn)
{
    return conn->peer;
}

uint32_t conn_rtt_us(const struct conn *conn)
{
    return conn->transport.fd >= 0 && !transport_is_shm(&conn->transport)
               ? sock_rtt_us(conn->transport.fd)
               : 0;
}

uint32_t conn_waiting(const struct conn *conn)
{
    return conn->outbox.count;
}

uint64_t conn_sent_bytes(const struct conn *conn)
{
    return conn->sent_bytes;
}

uint64_t conn_received_bytes(const struct conn *conn)
{
    return conn->received_bytes;
}
