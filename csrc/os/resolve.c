/* Names to addresses. getaddrinfo can neither be given a deadline nor be interrupted, so it
 * runs on a detached thread that shares one counted record with whoever asked. */
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"
#include "os/addr.h"
#include "os/clock.h"
#include "os/thread.h"

#define LOOKUP_STACK_BYTES (256u << 10)

struct lookup {
    struct solo_url url;
    struct latch done;
    struct addr_list found;
    int event_fd;      /* readable when done; -1: the asker waits for the latch */
    atomic_int owners; /* the asker and the thread */
};

static atomic_uint lookups; /* threads inside getaddrinfo, process-wide */

static void lookup_release(struct lookup *lookup)
{
    if (atomic_fetch_sub(&lookup->owners, 1) == 1) {
        latch_deinit(&lookup->done);
        if (lookup->event_fd >= 0) {
            close(lookup->event_fd);
        }
        free(lookup);
    }
}

static int name_error(const char *host, int code)
{
    switch (code) {
    case EAI_NONAME:
#ifdef EAI_NODATA
    case EAI_NODATA:
#endif
        return err_set(SOLO_ENOENT, "no host is named %s: check the spelling, or give its number",
                       host);
    case EAI_AGAIN:
        return err_set(SOLO_ENOENT,
                       "the name server did not say who %s is; give its number, or "
                       "check /etc/resolv.conf",
                       host);
    default:
        return err_set(SOLO_ENOENT, "cannot look up %s: %s", host, gai_strerror(code));
    }
}

static int look_up(const struct solo_url *url, struct addr_list *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", url->port);
    int code = getaddrinfo(url->host, port, &hints, &found);
    if (code != 0) {
        return name_error(url->host, code);
    }
    out->count = 0;
    for (struct addrinfo *info = found; info && out->count < ADDR_MAX; info = info->ai_next) {
        struct addr *addr = &out->at[out->count++];
        *addr = (struct addr){.size = info->ai_addrlen};
        memcpy(&addr->bytes, info->ai_addr, info->ai_addrlen);
    }
    freeaddrinfo(found);
    return 0;
}

static void *lookup_run(void *argument)
{
    struct lookup *lookup = argument;
    pthread_setname_np(pthread_self(), "solo-lookup");
    int rc = look_up(&lookup->url, &lookup->found);
    atomic_fetch_sub(&lookups, 1);
    latch_set(&lookup->done, rc, rc < 0 ? err_text() : NULL);
    uint64_t one = 1;
    ssize_t written = lookup->event_fd < 0 ? 0 : write(lookup->event_fd, &one, sizeof one);
    (void)written; /* an eventfd's first write cannot fail */
    lookup_release(lookup);
    return NULL;
}

static int start_thread(struct lookup *lookup)
{
    pthread_attr_t attributes;
    pthread_t id;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, LOOKUP_STACK_BYTES);
    int rc = thread_create(&id, &attributes, lookup_run, lookup);
    pthread_attr_destroy(&attributes);
    errno = rc;
    return rc == 0 ? 0 : err_errno("no thread for looking up %s", lookup->url.host);
}

/* Takes event_fd on success. Gives *out: lookup_release. */
static int lookup_start(const struct solo_url *url, int event_fd, struct lookup **out)
{
    struct lookup *lookup = calloc(1, sizeof *lookup);
    if (!lookup) {
        err_set(SOLO_ENOMEM, "no memory to look up %s", url->host);
        return SOLO_ENOMEM;
    }
    lookup->url = *url;
    lookup->event_fd = -1; /* the caller's until all went well */
    latch_init(&lookup->done);
    atomic_init(&lookup->owners, 1);
    int rc = 0;
    if (atomic_fetch_add(&lookups, 1) >= ADDR_LOOKUPS_MAX) {
        rc = err_set(SOLO_EAGAIN, "%u look-ups wait for the name server already", ADDR_LOOKUPS_MAX);
    } else {
        lookup->event_fd = event_fd;
        atomic_store(&lookup->owners, 2);
        rc = start_thread(lookup);
    }
    if (rc < 0) {
        atomic_fetch_sub(&lookups, 1);
        lookup->event_fd = -1;
        atomic_store(&lookup->owners, 1);
        lookup_release(lookup);
        return rc;
    }
    *out = lookup;
    return 0;
}

static int no_answer(const char *host)
{
    return err_set(SOLO_ETIMEDOUT,
                   "the name server does not answer for %s; give its number, or "
                   "check /etc/resolv.conf",
                   host);
}

int addr_resolve(const struct solo_url *url, uint64_t deadline_us, struct addr_list *out)
{
    if (addr_numeric(url, &out->at[0]) == 0) {
        out->count = 1;
        return 0;
    }
    struct lookup *lookup = NULL;
    TRY(lookup_start(url, -1, &lookup));
    int rc = 0;
    if (!latch_wait(&lookup->done, deadline_us, &rc)) {
        rc = no_answer(url->host);
    } else if (rc == 0) {
        *out = lookup->found;
    }
    lookup_release(lookup);
    return rc;
}

int solo_resolve(const struct solo_url *url, uint32_t timeout_ms, char *numeric, size_t size)
{
    struct addr_list found;
    char text[ADDR_TEXT_MAX];
    TRY(addr_resolve(url, clock_us() + (uint64_t)timeout_ms * 1000, &found));
    addr_host_text(&found.at[0], text);
    snprintf(numeric, size, "%s", text);
    return 0;
}

/* ---- on the loop ------------------------------------------------------------------------ */

struct addr_query {
    struct loop *loop;
    struct lookup *lookup; /* NULL: the host is numeric, `found` has it */
    struct addr_list found;
    struct loop_io io;         /* the lookup's event */
    struct loop_timer timeout; /* of a numeric host: due at once, so that fn is never called
                                  from inside addr_query_start */
    addr_found_fn fn;
    void *context;
};

static void answer(struct addr_query *query, int rc, const struct addr_list *found)
{
    struct addr_list copy = *found;
    addr_found_fn fn = query->fn;
    void *context = query->context;
    addr_query_cancel(query);
    fn(context, rc, &copy);
}

static void on_event(void *context, uint32_t events)
{
    struct addr_query *query = context;
    int rc = 0;
    (void)events;
    if (latch_wait(&query->lookup->done, 0, &rc)) {
        answer(query, rc, &query->lookup->found);
    }
}

static void on_timeout(void *context)
{
    struct addr_query *query = context;
    int rc = query->lookup ? no_answer(query->lookup->url.host) : 0;
    answer(query, rc, &query->found);
}

int addr_query_start(struct loop *loop, const struct solo_url *url, uint64_t deadline_us,
                     addr_found_fn fn, void *context, struct addr_query **out)
{
    struct addr_query *query = calloc(1, sizeof *query);
    if (!query) {
        return err_set(SOLO_ENOMEM, "no memory to look up %s", url->host);
    }
    query->loop = loop;
    query->fn = fn;
    query->context = context;
    query->timeout = (struct loop_timer){.fn = on_timeout, .context = query};
    query->io = (struct loop_io){.fn = on_event, .context = query, .fd = -1};
    int rc = 0;
    if (addr_numeric(url, &query->found.at[0]) == 0) {
        query->found.count = 1;
        deadline_us = 0;
    } else if ((query->io.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
        rc = err_errno("no descriptor for looking up %s (limit: ulimit -n)", url->host);
    } else if ((rc = lookup_start(url, query->io.fd, &query->lookup)) < 0) {
        close(query->io.fd);
    } else {
        rc = loop_watch(loop, &query->io, EPOLLIN);
    }
    if (rc < 0) {
        addr_query_cancel(query);
        return rc;
    }
    loop_timer_set(loop, &query->timeout, deadline_us);
    *out = query;
    return 0;
}

void addr_query_cancel(struct addr_query *query)
{
    if (!query) {
        return;
    }
    loop_timer_cancel(query->loop, &query->timeout);
    loop_unwatch(query->loop, &query->io);
    if (query->lookup) {
        lookup_release(query->lookup); /* the thread ends when the resolver lets it */
    }
    free(query);
}
