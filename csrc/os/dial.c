#include "os/dial.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "os/sock.h"

struct dial {
    struct loop *loop;
    struct addr_query *query;
    struct addr_list list;
    uint32_t next; /* address to try next */
    struct loop_io io;
    struct loop_timer timeout; /* of the attempt in progress */
    uint64_t deadline_us;
    bool loopback_only;
    enum solo_reach reach;
    dial_fn fn;
    void *context;
};

static void stop_attempt(struct dial *dial)
{
    loop_timer_cancel(dial->loop, &dial->timeout);
    loop_unwatch(dial->loop, &dial->io);
    if (dial->io.fd >= 0) {
        close(dial->io.fd);
        dial->io.fd = -1;
    }
}

void dial_cancel(struct dial *dial)
{
    if (dial) {
        stop_attempt(dial);
        addr_query_cancel(dial->query);
        free(dial);
    }
}

static void finish(struct dial *dial, int rc, int fd)
{
    dial_fn fn = dial->fn;
    void *context = dial->context;
    enum solo_reach reach = rc == 0 ? SOLO_REACHED : dial->reach;
    struct addr to = dial->list.at[dial->next > 0 ? dial->next - 1 : 0];
    dial_cancel(dial);
    fn(context, rc, fd, &to, reach);
}

static int begin_attempt(struct dial *dial, const struct addr *to)
{
    if (dial->loopback_only && !addr_is_loopback(to)) {
        char text[ADDR_TEXT_MAX];
        addr_text(to, text);
        dial->reach = SOLO_BAD_TOKEN;
        return err_set(SOLO_EAUTH,
                       "%s is not on this host: without a token only loopback is "
                       "allowed; give all nodes the same --token_file, or --insecure",
                       text);
    }
    TRY(sock_connect(to, &dial->io.fd, &dial->reach));
    return loop_watch(dial->loop, &dial->io, EPOLLOUT);
}

/* Tries the addresses that are left; rc is the error of the one before. */
static void try_next(struct dial *dial, int rc)
{
    stop_attempt(dial);
    while (dial->next < dial->list.count) {
        uint32_t left = dial->list.count - dial->next;
        uint64_t now_us = loop_now(dial->loop);
        uint64_t left_us = dial->deadline_us > now_us ? dial->deadline_us - now_us : 0;
        rc = begin_attempt(dial, &dial->list.at[dial->next++]);
        if (rc == 0) {
            loop_timer_set(dial->loop, &dial->timeout, now_us + left_us / left);
            return;
        }
        stop_attempt(dial);
    }
    finish(dial, rc, -1);
}

static void on_timeout(void *context)
{
    struct dial *dial = context;
    const struct addr *to = &dial->list.at[dial->next - 1];
    try_next(dial, sock_connect_error(ETIMEDOUT, to, &dial->reach));
}

static void on_writable(void *context, uint32_t events)
{
    struct dial *dial = context;
    (void)events;
    int rc = sock_connected(dial->io.fd, &dial->list.at[dial->next - 1], &dial->reach);
    if (rc < 0) {
        try_next(dial, rc);
        return;
    }
    int fd = dial->io.fd;
    loop_unwatch(dial->loop, &dial->io);
    dial->io.fd = -1;
    finish(dial, 0, fd);
}

static void on_found(void *context, int rc, const struct addr_list *found)
{
    struct dial *dial = context;
    dial->query = NULL;
    if (rc < 0) {
        finish(dial, rc, -1);
        return;
    }
    dial->list = *found;
    try_next(dial, SOLO_ENOENT);
}

int dial_start(struct loop *loop, const struct solo_url *to, bool loopback_only,
               uint64_t deadline_us, dial_fn fn, void *context, struct dial **out)
{
    struct dial *dial = calloc(1, sizeof *dial);
    if (!dial) {
        return err_set(SOLO_ENOMEM, "no memory to connect to %s", to->host);
    }
    dial->loop = loop;
    dial->deadline_us = deadline_us;
    dial->loopback_only = loopback_only;
    dial->reach = SOLO_NO_NAME;
    dial->fn = fn;
    dial->context = context;
    dial->io = (struct loop_io){.fn = on_writable, .context = dial, .fd = -1};
    dial->timeout = (struct loop_timer){.fn = on_timeout, .context = dial};
    int rc = addr_query_start(loop, to, deadline_us, on_found, dial, &dial->query);
    if (rc < 0) {
        dial_cancel(dial);
        return rc;
    }
    *out = dial;
    return 0;
}
