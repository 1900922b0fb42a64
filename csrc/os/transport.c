#include "os/transport.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "os/sock.h"

enum { SHORT_BYTES = 256 };

/* ---- a plain socket --------------------------------------------------------------------- */

static ssize_t socket_error(const char *doing)
{
    switch (errno) {
    case EAGAIN:
    case EINTR:
        return SOLO_EAGAIN;
    case EPIPE:
    case ECONNRESET:
        return err_set(SOLO_ECLOSED, "the connection was reset: the process at the other end "
                                     "died or gave up");
    case ETIMEDOUT:
        return err_set(SOLO_ETIMEDOUT, "the other host does not answer any more");
    default:
        return err_errno("%s", doing);
    }
}

static ssize_t socket_read(struct transport *transport, void *at, size_t size)
{
    ssize_t count = recv(transport->fd, at, size, MSG_DONTWAIT);
    if (count == 0) {
        return err_set(SOLO_ECLOSED, "the other side closed the connection");
    }
    return count > 0 ? count : socket_error("receiving");
}

/* A short frame in one piece: the kernel takes longer to look at a list than we to copy. */
static ssize_t write_short(int fd, const struct iovec parts[2])
{
    uint8_t bytes[SHORT_BYTES];
    memcpy(bytes, parts[0].iov_base, parts[0].iov_len);
    memcpy(bytes + parts[0].iov_len, parts[1].iov_base, parts[1].iov_len);
    return send(fd, bytes, parts[0].iov_len + parts[1].iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t socket_write(struct transport *transport, const struct iovec *parts, int count)
{
    if (count == 2 && parts[0].iov_len + parts[1].iov_len <= SHORT_BYTES) {
        ssize_t sent = write_short(transport->fd, parts);
        return sent > 0 ? sent : sent == 0 ? SOLO_EAGAIN : socket_error("sending");
    }
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts,
                             .msg_iovlen = (size_t)count};
    ssize_t sent = sendmsg(transport->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent > 0 ? sent : sent == 0 ? SOLO_EAGAIN : socket_error("sending");
}

static const struct transport_calls socket_calls = {socket_read, socket_write};

void transport_socket(struct transport *transport, int fd)
{
    *transport = (struct transport){.calls = &socket_calls, .fd = fd, .shm = {.fd = -1}};
}

/* ---- shared memory ---------------------------------------------------------------------- */

/* A full socket buffer already holds a bell; a closed one is noticed by whoever reads it. */
static void ring_bell(struct transport *transport, struct ring *ring)
{
    if (ring->bell) {
        ssize_t sent = send(transport->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent;
        ring->bell = false;
    }
}

static ssize_t hung_up(void)
{
    return err_set(SOLO_ECLOSED, "the process at the other end closed its shared memory");
}

static ssize_t shm_read(struct transport *transport, void *at, size_t size)
{
    int64_t count = ring_read(&transport->in, at, size);
    ring_bell(transport, &transport->in);
    if (count == 0) {
        return transport->hangup ? hung_up() : SOLO_EAGAIN;
    }
    return (ssize_t)count;
}

static ssize_t shm_write(struct transport *transport, const struct iovec *parts, int count)
{
    if (transport->hangup) {
        return hung_up();
    }
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        size_t done = 0;
        while (done < parts[i].iov_len) {
            int64_t moved = ring_write(&transport->out, (uint8_t *)parts[i].iov_base + done,
                                       parts[i].iov_len - done);
            ring_bell(transport, &transport->out);
            if (moved <= 0) {
                return total > 0 ? total : moved == 0 ? SOLO_EAGAIN : (ssize_t)moved;
            }
            done += (size_t)moved;
            total += (ssize_t)moved;
        }
    }
    return total;
}

static const struct transport_calls shm_calls = {shm_read, shm_write};

int64_t transport_peek(struct transport *transport, size_t size, const uint8_t **out)
{
    int64_t count = ring_peek(&transport->in, size, out);
    return count == 0 && transport->hangup ? hung_up() : count;
}

void transport_take(struct transport *transport, size_t size)
{
    ring_take(&transport->in, size);
    ring_bell(transport, &transport->in);
}

int64_t transport_room(struct transport *transport, size_t size, size_t spare, uint8_t **out)
{
    return transport->hangup ? hung_up() : ring_room(&transport->out, size, spare, out);
}

void transport_put(struct transport *transport, size_t size)
{
    ring_put(&transport->out, size);
    ring_bell(transport, &transport->out);
}

/* The dialing side writes the first ring of the segment and reads the second. */
static int use_rings(struct transport *transport, bool dialed)
{
    TRY(ring_open(&transport->shm, dialed ? 0 : 1, &transport->out));
    TRY(ring_open(&transport->shm, dialed ? 1 : 0, &transport->in));
    shm_drop_fd(&transport->shm);
    return 0;
}

enum { NOW = 0 }; /* a deadline that has passed: only looks */

int transport_offer(struct transport *transport)
{
    TRY(shm_create("solo-link", RING_SEGMENT_BYTES(2), &transport->shm));
    TRY(shm_send_fds(transport->fd, "", 1, &transport->shm.fd, 1, NOW));
    return use_rings(transport, true);
}

int transport_accept(struct transport *transport)
{
    char byte;
    int fd = -1;
    int rc = shm_receive_fds(transport->fd, &byte, 1, &fd, 1, NOW);
    if (rc < 0) {
        return rc == SOLO_ETIMEDOUT ? SOLO_EAGAIN : rc;
    }
    TRY(shm_attach(fd, RING_SEGMENT_BYTES(2), &transport->shm));
    TRY(use_rings(transport, false));
    transport->calls = &shm_calls;
    return send(transport->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : (int)hung_up();
}

int transport_accepted(struct transport *transport)
{
    char byte;
    ssize_t count = socket_read(transport, &byte, 1);
    if (count == 1) {
        transport->calls = &shm_calls;
    }
    return count == 1 ? 0 : (int)count;
}

void transport_bell(struct transport *transport)
{
    char bells[256];
    ssize_t count = recv(transport->fd, bells, sizeof bells, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
        transport->hangup = true;
    }
}

/* With shared memory too: the peer finds the socket closed, and reads what the ring still has. */
void transport_shut(struct transport *transport)
{
    shutdown(transport->fd, SHUT_WR);
}

bool transport_is_shm(const struct transport *transport)
{
    return transport->calls == &shm_calls;
}

void transport_close(struct transport *transport, bool abrupt)
{
    ring_close(&transport->in);
    ring_close(&transport->out);
    shm_close(&transport->shm);
    if (transport->fd >= 0 && abrupt) {
        sock_reset(transport->fd);
    } else if (transport->fd >= 0) {
        close(transport->fd);
    }
    transport->fd = -1;
}
