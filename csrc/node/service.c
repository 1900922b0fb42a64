/* The master as a process or thread of its own: the real loop round protocol/master.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/events.h"
#include "node/report.h"
#include "os/door.h"
#include "os/host.h"
#include "os/journal.h"
#include "os/sock.h"
#include "protocol/master.h"

#define SERVICE_LINGER_US 1000000u /* farewells have so long to be sent */
#define EVENTS_BYTES_MAX                                                                           \
    (UINT64_C(64) << 20) /* of events.jsonl; so much is kept JOURNAL_KEPT times */
#define TIMEOUT_MS_DEFAULT 300000u
#define LEASE_MS_DEFAULT   10000u

struct client {
    struct solo_master *service;
    struct conn *conn; /* NULL: the place is free */
    uint32_t number;
    bool closing; /* the machine has closed it; only what was sent is still going out */
    bool failed;  /* it could not take a message: CLOSED is fed with the next turn */
};

struct solo_master {
    struct loop *loop;
    struct door *door;
    int listen_fd; /* until the door has it; 0: none */
    struct client clients[MASTER_CONNS_MAX];
    struct master master;
    struct master_out out;
    struct msg_status status;
    struct loop_timer tick, end;
    struct loop_task failures;
    bool failures_queued, over;
    int rc;
    struct journal events; /* path "": none */
    char job_id[SOLO_NAME_MAX];
    char *token;
    char text[SOLO_TEXT_MAX]; /* of the event that ended it */
    uint8_t payload[FRAME_TABLE_MAX];
};

/* ---- actions --------------------------------------------------------------------------- */

static void on_failures(void *context);

static void fail_client(struct client *client)
{
    struct solo_master *service = client->service;
    client->failed = true;
    if (!service->failures_queued) {
        service->failures_queued = true;
        service->failures.fn = on_failures;
        service->failures.context = service;
        loop_later(service->loop, &service->failures);
    }
}

static void send_msg(struct solo_master *service, uint32_t number, const struct msg *msg)
{
    struct client *client = &service->clients[number];
    if (!client->conn || client->closing || client->failed) {
        return;
    }
    int size = msg_encode(msg, service->payload, sizeof service->payload);
    MUST(size >= 0);
    struct frame frame = {.type = msg->type};
    if (conn_send_copy(client->conn, &frame, service->payload, (size_t)size) < 0) {
        fail_client(client);
    }
}

static void close_client(struct solo_master *service, uint32_t number)
{
    struct client *client = &service->clients[number];
    if (client->conn) {
        client->closing = true;
        conn_finish(client->conn, loop_now(service->loop) + SERVICE_LINGER_US);
    }
}

static void send_status(struct solo_master *service, uint32_t number)
{
    master_status(&service->master, &service->status);
    service->status.wall_us = clock_wall_us();
    struct msg msg = {.type = FRAME_STATUS, .table.status = &service->status};
    send_msg(service, number, &msg);
}

static void note_event(struct solo_master *service, const struct event *event)
{
    char line[EVENTS_LINE_MAX];
    report_line(event, line, sizeof line);
    bool often = event->kind == EVENT_BEGIN || event->kind == EVENT_COMMITTED;
    log_line(often ? SOLO_LOG_DEBUG : SOLO_LOG_INFO, "solo master: %s", line);
    if (service->events.path[0] && journal_add(&service->events, line) < 0) {
        log_line(SOLO_LOG_WARN, "solo master: %s", err_text());
    }
    if (event->kind == EVENT_OVER) {
        snprintf(service->text, sizeof service->text, "%s", event->text);
    }
}

static void on_end(void *context)
{
    loop_stop(((struct solo_master *)context)->loop);
}

static void end_service(struct solo_master *service, int rc)
{
    service->over = true;
    service->rc = rc;
    for (uint32_t i = 0; i < MASTER_CONNS_MAX; i++) {
        if (!service->clients[i].closing) {
            close_client(service, i);
        }
    }
    loop_timer_set(service->loop, &service->end, loop_now(service->loop) + SERVICE_LINGER_US);
}

static void stop_when_empty(struct solo_master *service)
{
    if (!service->over) {
        return;
    }
    for (uint32_t i = 0; i < MASTER_CONNS_MAX; i++) {
        if (service->clients[i].conn) {
            return;
        }
    }
    loop_stop(service->loop);
}

static void do_action(struct solo_master *service, const struct master_action *action)
{
    switch (action->type) {
    case MASTER_SEND:
        send_msg(service, action->conn,
                 action->msg ? action->msg : &service->out.msgs[action->index]);
        break;
    case MASTER_CLOSE:
        close_client(service, action->conn);
        break;
    case MASTER_STATUS:
        send_status(service, action->conn);
        break;
    case MASTER_EVENT:
        note_event(service, &service->out.events[action->index]);
        break;
    case MASTER_OVER:
        end_service(service, action->rc);
        break;
    }
}

static void feed(struct solo_master *service, struct master_event event)
{
    do {
        event.now_us = loop_now(service->loop);
        service->out.count = service->out.msg_count = service->out.event_count = 0;
        service->out.more = false;
        (void)master_step(&service->master, &event, &service->out);
        for (uint32_t i = 0; i < service->out.count; i++) {
            do_action(service, &service->out.actions[i]);
        }
        event = (struct master_event){.type = MASTER_TICK};
    } while (service->out.more);
    if (service->over || service->out.wake_us == UINT64_MAX) {
        loop_timer_cancel(service->loop, &service->tick);
    } else {
        loop_timer_set(service->loop, &service->tick, service->out.wake_us);
    }
    stop_when_empty(service);
}

/* ---- connections ----------------------------------------------------------------------- */

static void free_client(struct client *client)
{
    conn_free(client->conn);
    client->conn = NULL;
    client->closing = client->failed = false;
}

static void on_lost(void *context, struct conn *conn, int rc, const char *text)
{
    struct client *client = context;
    struct solo_master *service = client->service;
    (void)conn;
    (void)rc;
    bool known = !client->closing;
    char copy[MSG_REASON_MAX];
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    free_client(client);
    if (known) {
        feed(service,
             (struct master_event){.type = MASTER_CLOSED, .conn = client->number, .text = copy});
    }
    stop_when_empty(service);
}

static void on_failures(void *context)
{
    struct solo_master *service = context;
    service->failures_queued = false;
    for (uint32_t i = 0; i < MASTER_CONNS_MAX; i++) {
        if (service->clients[i].failed) {
            on_lost(&service->clients[i], NULL, SOLO_EAGAIN, "it does not read what it is sent");
        }
    }
}

static int take_message(struct client *client, const struct frame *frame, const void *payload)
{
    struct solo_master *service = client->service;
    if (frame->type == FRAME_MEMBERS || frame->type == FRAME_STATUS) {
        return err_set(SOLO_EPEER, "a %s message is the master's to send", frame_name(frame->type));
    }
    struct msg msg = {.type = frame->type};
    TRY(msg_decode(frame->type, payload, frame->size, &msg));
    feed(service,
         (struct master_event){.type = MASTER_MESSAGE, .conn = client->number, .msg = &msg});
    return 0;
}

static int on_frame(void *context, struct conn *conn, const struct frame *frame,
                    const void *payload)
{
    struct client *client = context;
    (void)conn;
    return client->closing ? 0 : take_message(client, frame, payload);
}

static const struct conn_calls calls = {.frame = on_frame, .lost = on_lost};

static void on_refused(void *context, const char *from, int rc, const char *text)
{
    (void)context;
    log_line(SOLO_LOG_INFO, "solo master: turned away %s: %s (%s)", from, text,
             solo_error_name(rc));
}

static int on_admit(void *context, struct conn *conn, const struct frame *first,
                    const void *payload)
{
    struct solo_master *service = context;
    for (uint32_t i = 0; i < MASTER_CONNS_MAX && !service->over; i++) {
        struct client *client = &service->clients[i];
        if (!client->conn) {
            *client = (struct client){.service = service, .conn = conn, .number = i};
            conn_adopt(conn, &calls, client);
            feed(service, (struct master_event){
                              .type = MASTER_ACCEPTED, .conn = i, .address = conn_peer(conn)});
            int rc = take_message(client, first, payload);
            if (rc < 0) { /* no node yet whose loss would tell why */
                on_refused(service, conn_peer(conn), rc, err_text());
                fail_client(client);
            }
            return 0;
        }
    }
    return err_set(SOLO_ELIMIT, "the master has %u connections, its limit", MASTER_CONNS_MAX);
}

static const struct door_calls door_calls = {.admit = on_admit, .refused = on_refused};

/* ---- open, run, close ------------------------------------------------------------------ */

static void on_tick(void *context)
{
    feed(context, (struct master_event){.type = MASTER_TICK});
}

/* The port is taken: by another master, more often than not. */
static int name_holder(const struct solo_master_config *config, int rc)
{
    char text[SOLO_TEXT_MAX];
    snprintf(text, sizeof text, "%s", err_text());
    struct solo_status *status = calloc(1, sizeof *status);
    if (status) {
        status->size = sizeof *status;
        if (solo_status_get(config->url, config->job_id, config->token, 500, status) == 0) {
            snprintf(text, sizeof text,
                     "job '%.60s' has a master at %.80s already: pid %llu on %.60s. Join it with "
                     "another --node_rank, or end it first",
                     status->job_id, config->url, (unsigned long long)status->master_pid,
                     status->master_name);
        }
        free(status);
    }
    return err_set(rc, "%s", text);
}

static int open_door(struct solo_master *service, const struct solo_master_config *config)
{
    int fd = service->listen_fd;
    service->listen_fd = 0;
    if (fd <= 0) {
        struct solo_url url;
        uint16_t port;
        TRY(solo_url_parse(config->url, &url));
        int rc = sock_listen(&url, &fd, &port);
        if (rc == SOLO_EINUSE) {
            return name_holder(config, rc);
        }
        TRY(rc);
    }
    struct door_config door = {
        .loop = service->loop,
        .job_id = service->job_id,
        .token = service->token,
        .insecure = config->insecure,
        .roles = 1u << HELLO_CONTROL | 1u << HELLO_STATUS,
        .calls = &door_calls,
        .context = service,
        .listen_fd = fd,
    };
    return door_open(&door, &service->door);
}

static int copy_argument(char *out, const char *text, const char *what)
{
    if (text && strlen(text) >= MSG_TEXT_MAX) {
        return err_set(SOLO_ELIMIT, "%s '%.40s...' is longer than %u bytes: shorten it", what, text,
                       MSG_TEXT_MAX - 1);
    }
    snprintf(out, MSG_TEXT_MAX, "%s", text ? text : "");
    return 0;
}

static int copy_arguments(struct msg_arguments *out, const struct solo_master_config *config)
{
    TRY(copy_argument(out->interval, config->interval, "the sync interval"));
    TRY(copy_argument(out->outer, config->outer, "the outer rule"));
    TRY(copy_argument(out->codec, config->codec, "the codec"));
    return copy_argument(out->versions, config->versions, "the versions text");
}

static int init_master(struct solo_master *service, const struct solo_master_config *config)
{
    uint32_t timeout_ms = config->timeout_ms ? config->timeout_ms : TIMEOUT_MS_DEFAULT;
    uint32_t lease_ms = config->lease_ms ? config->lease_ms : LEASE_MS_DEFAULT;
    struct master_config master = {
        .pid = host_pid(),
        .incarnation = clock_wall_us(),
        .min_nodes = config->min_nodes ? config->min_nodes : 1,
        .expected_nodes = config->expected_nodes,
        .timeout_us = (uint64_t)timeout_ms * 1000,
        .lease_us = (uint64_t)lease_ms * 1000,
        .first_us = (uint64_t)config->first_ms * 1000,
        .linger = config->linger != 0,
    };
    TRY(copy_arguments(&master.arguments, config));
    snprintf(master.job_id, sizeof master.job_id, "%s", service->job_id);
    host_name(master.name, sizeof master.name);
    snprintf(master.address, sizeof master.address, "%s", config->url ? config->url : "");
    return master_init(&service->master, &master, clock_us());
}

static int open_service(struct solo_master *service, const struct solo_master_config *config)
{
    const char *job = config->job_id && config->job_id[0] ? config->job_id : "default";
    if (strlen(job) >= sizeof service->job_id) {
        return err_set(SOLO_ELIMIT, "the job id '%.40s...' is longer than %zu bytes", job,
                       sizeof service->job_id - 1);
    }
    memcpy(service->job_id, job, strlen(job) + 1);
    if (config->token && config->token[0]) {
        service->token = strdup(config->token);
        if (!service->token) {
            return err_set(SOLO_ENOMEM, "no memory for the token");
        }
    }
    TRY(loop_new(&service->loop));
    TRY(init_master(service, config));
    if (config->events_path && config->events_path[0]) {
        TRY(journal_open(&service->events, config->events_path, EVENTS_BYTES_MAX));
    }
    service->tick.fn = on_tick;
    service->end.fn = on_end;
    service->tick.context = service->end.context = service;
    TRY(open_door(service, config));
    loop_timer_set(service->loop, &service->tick, clock_us());
    return 0;
}

int solo_master_open(const struct solo_master_config *from, struct solo_master **out)
{
    struct solo_master_config config = {0};
    if (!from || from->size == 0) {
        return err_set(SOLO_EINVAL, "solo_master_open: config.size is not set");
    }
    memcpy(&config, from, from->size < sizeof config ? from->size : sizeof config);
    if (!config.url && config.listen_fd <= 0) {
        return err_set(SOLO_EINVAL, "solo_master_open: url is missing: tcp://HOST:PORT");
    }
    struct solo_master *service = calloc(1, sizeof *service);
    if (!service) {
        sock_close(config.listen_fd);
        return err_set(SOLO_ENOMEM, "no memory for the master");
    }
    service->events.fd = -1;
    service->listen_fd = config.listen_fd;
    int rc = open_service(service, &config);
    if (rc < 0) {
        solo_master_close(service);
        return rc;
    }
    *out = service;
    return 0;
}

int solo_master_run(struct solo_master *service)
{
    TRY(loop_run(service->loop));
    if (service->rc < 0) {
        return err_set(service->rc, "%s", service->text);
    }
    return 0;
}

void solo_master_stop(struct solo_master *service)
{
    loop_stop(service->loop);
}

void solo_master_close(struct solo_master *service)
{
    if (!service) {
        return;
    }
    door_close(service->door);
    sock_close(service->listen_fd);
    for (uint32_t i = 0; i < MASTER_CONNS_MAX; i++) {
        conn_free(service->clients[i].conn);
    }
    loop_free(service->loop);
    journal_close(&service->events);
    free(service->token);
    free(service);
}
