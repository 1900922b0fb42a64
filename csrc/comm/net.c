#include "comm/net_inside.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "os/clock.h"

/* A dialling rank may be early by as long as the others compute. */
#define HELLO_US (UINT64_C(24) * 3600 * 1000000)
#define GUEST_US 30000000u /* a guest is served only while some call of this rank waits */

/* ---- turns ------------------------------------------------------------------------------------ */

void net_enter(struct net *net)
{
    pthread_mutex_lock(&net->mutex);
    uint64_t ticket = net->next_ticket++;
    if (net->serving != ticket) {
        loop_wake(net->loop);
    }
    while (net->serving != ticket) {
        pthread_cond_wait(&net->left, &net->mutex);
    }
    pthread_mutex_unlock(&net->mutex);
}

bool net_try_enter(struct net *net)
{
    pthread_mutex_lock(&net->mutex);
    bool free = net->next_ticket == net->serving;
    net->next_ticket += free;
    pthread_mutex_unlock(&net->mutex);
    return free;
}

void net_leave(struct net *net)
{
    pthread_mutex_lock(&net->mutex);
    net->serving++;
    pthread_cond_broadcast(&net->left);
    pthread_mutex_unlock(&net->mutex);
}

void net_wake(struct net *net)
{
    loop_wake(net->loop);
}

static bool others_wait(struct net *net)
{
    pthread_mutex_lock(&net->mutex);
    bool wait = net->next_ticket > net->serving + 1;
    pthread_mutex_unlock(&net->mutex);
    return wait;
}

static void give_way(struct net *net)
{
    if (others_wait(net)) {
        net_leave(net);
        net_enter(net);
    }
}

int net_turn(struct net *net, uint64_t deadline_us)
{
    /* First, for what is to be sent need not wait for a look around; and what is waited for may be
     * in it. */
    bool any = loop_run_tasks(net->loop);
    int rc = loop_turn(net->loop, any ? 0 : deadline_us);
    give_way(net);
    return rc;
}

#define GUESSES 4u /* polls to a whole look around; see loop_guess */

/* Whoever was waited for last is mostly the one that is waited for next. */
static int look(struct net *net)
{
    if (++net->polls % GUESSES == 0 || !loop_guess(net->loop)) {
        return net_turn(net, 0);
    }
    give_way(net);
    return 0;
}

int net_poll(struct net *net)
{
    net->events = 0;
    int rc = look(net);
    if (rc == 0 && net->events == 0) {
        uint64_t given_us = clock_us();
        sched_yield();
        crowd_note(&net->crowd, given_us, clock_us());
    }
    return rc;
}

bool net_may_poll(const struct net *net, uint64_t now_us)
{
    return !crowd_seen(&net->crowd, now_us);
}

void net_flush(struct net *net)
{
    loop_run_tasks(net->loop);
}

int net_look(struct net *net)
{
    if (loop_guess(net->loop)) {
        return 0;
    }
    loop_run_tasks(net->loop);
    return loop_turn(net->loop, 0);
}

/* ---- what links say ------------------------------------------------------------------------------ */

static int on_place(void *context, struct link *link, const struct frame *frame, void **room_out)
{
    struct end *end = context;
    struct net *net = end->net;
    (void)link;
    if (frame->flags & NET_FAULT) {
        return 0; /* the connection's own buffer */
    }
    if (net->failing) {
        return 1;
    }
    const struct net_calls *calls = net->lanes[end->lane].calls;
    return calls ? calls->place(net->lanes[end->lane].context, end->rank, frame, room_out)
                 : SOLO_EAGAIN;
}

static void hear_fault(struct end *end, const struct frame *frame, const char *text)
{
    struct net *net = end->net;
    if (net->told_rc) {
        return;
    }
    net->told_rc = frame->extra > 0 && frame->extra < 64 ? -(int)frame->extra : SOLO_EPEER;
    net->told_by = end->rank;
    snprintf(net->told_text, sizeof net->told_text, "%.*s", (int)frame->size, text ? text : "");
}

static int on_frame(void *context, struct link *link, const struct frame *frame,
                    const void *payload)
{
    struct end *end = context;
    struct net *net = end->net;
    (void)link;
    net->events++;
    if (frame->type != FRAME_GROUP) {
        return err_set(SOLO_EPEER, "rank %u sent a frame of another kind", end->rank);
    }
    if (frame->flags & NET_FAULT) {
        hear_fault(end, frame, payload);
        return 0;
    }
    if (frame->flags == NET_GOODBYE) {
        net->peers[end->rank].left = true;
        return 0;
    }
    const struct net_calls *calls = net->lanes[end->lane].calls;
    return calls ? calls->frame(net->lanes[end->lane].context, end->rank, frame, payload)
                 : err_set(SOLO_EPEER, "rank %u sent what nobody waits for", end->rank);
}

static void on_sent(void *context, struct link *link, uint64_t tag)
{
    struct end *end = context;
    struct net *net = end->net;
    (void)link;
    end->borrowed--;
    if (tag != TAG_OWN && net->lanes[end->lane].calls && !net->failing) {
        net->lanes[end->lane].calls->sent(net->lanes[end->lane].context, end->rank, tag);
    }
}

static void on_lost(void *context, struct link *link, int rc, const char *text)
{
    struct end *end = context;
    (void)link;
    end->borrowed = 0;
    end->rc = rc == SOLO_EPEER || rc == SOLO_EMISMATCH || rc == SOLO_EAUTH ? rc : SOLO_ECLOSED;
    snprintf(end->text, sizeof end->text, "%s", text);
}

static const struct link_calls link_calls = {
    .place = on_place, .frame = on_frame, .sent = on_sent, .lost = on_lost};

/* ---- making links --------------------------------------------------------------------------------- */

/* The first frame of a connection: whose it is, and for what. */
struct greeting {
    uint32_t rank, lane;
};

static struct link_config config_of(struct end *end)
{
    struct net *net = end->net;
    return (struct link_config){.loop = net->loop,
                                .job_id = net->name,
                                .token = net->token,
                                .role = HELLO_GROUP,
                                .calls = &link_calls,
                                .context = end,
                                .streams = end->lane == NET_MAIL ? 1 : 0, /* mail keeps order */
                                .streams_max = net_streams_max(net->world),
                                .shm = false, /* ranks of one host have a board */
                                .hello_us = HELLO_US,
                                .patient = true};
}

static int on_admit(void *context, struct conn *conn, const struct frame *first,
                    const void *payload)
{
    struct net *net = context;
    struct greeting greeting;
    if (first->type != FRAME_LINK || first->size != sizeof greeting) {
        return err_set(SOLO_EPEER, "not the greeting of a rank");
    }
    memcpy(&greeting, payload, sizeof greeting);
    if (greeting.rank >= net->world || greeting.rank <= net->rank || greeting.lane >= NET_LANES) {
        return err_set(SOLO_EPEER, "a greeting of rank %u, lane %u", greeting.rank, greeting.lane);
    }
    struct end *end = &net->peers[greeting.rank].ends[greeting.lane];
    if (end->link) {
        return link_add(end->link, conn);
    }
    struct link_config config = config_of(end);
    return link_accept(&config, conn, &end->link);
}

int net_reach(struct net *net, uint32_t rank, enum net_lane lane)
{
    struct end *end = &net->peers[rank].ends[lane];
    const struct end *other = &net->peers[rank].ends[NET_LANES - 1 - lane];
    if (!end->link && other->rc && !end->rc) { /* gone before it came here */
        end->rc = other->rc;
        memcpy(end->text, other->text, sizeof end->text);
    }
    if (end->rc) {
        TRY(net_told_fault(net)); /* why it closed */
        return err_set(end->rc, "rank %u (%s): %s", rank, net->peers[rank].host, end->text);
    }
    if (end->link || rank > net->rank) {
        return 0;
    }
    struct greeting greeting = {net->rank, lane};
    struct frame frame = {.type = FRAME_LINK};
    struct link_config config = config_of(end);
    config.greeting = &frame;
    config.greeting_payload = &greeting;
    config.greeting_size = sizeof greeting;
    return link_dial(&config, &net->peers[rank].url, &end->link);
}

int net_send(struct net *net, uint32_t rank, enum net_lane lane, const struct frame *frame,
             const void *payload, size_t size, uint64_t tag)
{
    TRY(net_reach(net, rank, lane));
    struct end *end = &net->peers[rank].ends[lane];
    int rc = end->link ? link_send(end->link, frame, payload, size, tag) : SOLO_EAGAIN;
    end->borrowed += rc == 0;
    return rc;
}

void net_serve(struct net *net, enum net_lane lane, const struct net_calls *calls, void *context)
{
    net->lanes[lane].calls = calls;
    net->lanes[lane].context = context;
}

void net_resume(struct net *net, enum net_lane lane)
{
    for (uint32_t i = 0; i < net->world; i++) {
        struct end *end = &net->peers[i].ends[lane];
        if (end->link && !end->rc) {
            link_resume(end->link);
        }
    }
}

void net_divert(struct net *net, const void *base, size_t size)
{
    for (uint32_t i = 0; i < net->world * NET_LANES; i++) {
        struct end *end = &net->peers[i / NET_LANES].ends[i % NET_LANES];
        if (end->link && !end->rc) {
            link_divert(end->link, base, size);
        }
    }
}

void net_cut(struct net *net, uint32_t rank, enum net_lane lane)
{
    struct end *end = &net->peers[rank].ends[lane];
    link_free(end->link);
    end->link = NULL;
    end->borrowed = 0;
    if (!end->rc) {
        end->rc = SOLO_ECLOSED;
        snprintf(end->text, sizeof end->text, "closed after an error");
    }
}

void net_drop(struct net *net, enum net_lane lane)
{
    for (uint32_t i = 0; i < net->world; i++) {
        net_cut(net, i, lane);
    }
}

/* ---- life -------------------------------------------------------------------------------------------- */

static int init_peers(struct net *net, const struct net_config *config)
{
    for (uint32_t i = 0; i < net->world; i++) {
        struct peer *peer = &net->peers[i];
        for (uint32_t lane = 0; lane < NET_LANES; lane++) {
            peer->ends[lane] = (struct end){.net = net, .rank = i, .lane = (enum net_lane)lane};
        }
        snprintf(peer->host, sizeof peer->host, "%s", config->cards[i].host);
        if (i != net->rank && solo_url_parse(config->cards[i].address, &peer->url) < 0) {
            return err_set(SOLO_EPEER, "rank %u (%s) has no address: \"%s\"", i, peer->host,
                           config->cards[i].address);
        }
    }
    return 0;
}

static int open_door(struct net *net, int listen_fd)
{
    static const struct door_calls calls = {.admit = on_admit};
    struct door_config config = {.loop = net->loop,
                                 .job_id = net->name,
                                 .token = net->token,
                                 .roles = 1u << HELLO_GROUP,
                                 .hello_us = GUEST_US,
                                 .calls = &calls,
                                 .context = net,
                                 .listen_fd = listen_fd};
    return door_open(&config, &net->door);
}

int net_open(const struct net_config *config, struct net **out)
{
    struct net *net = calloc(1, sizeof *net);
    struct peer *peers = calloc(config->world, sizeof *peers);
    if (!net || !peers) {
        free(net);
        free(peers);
        return err_set(SOLO_ENOMEM, "no memory for %u ranks", config->world);
    }
    net->rank = config->rank;
    net->world = config->world;
    net->token = config->token;
    net->name = config->name;
    net->peers = peers;
    pthread_mutex_init(&net->mutex, NULL);
    pthread_cond_init(&net->left, NULL);
    int rc = init_peers(net, config);
    if (rc == 0) {
        rc = loop_new(&net->loop);
    }
    if (rc == 0) {
        rc = open_door(net, config->listen_fd);
    }
    if (rc < 0) {
        net_close(net);
        return rc;
    }
    *out = net;
    return 0;
}

void net_close(struct net *net)
{
    if (!net) {
        return;
    }
    for (uint32_t i = 0; i < net->world * NET_LANES; i++) {
        link_free(net->peers[i / NET_LANES].ends[i % NET_LANES].link);
    }
    door_close(net->door);
    loop_free(net->loop);
    pthread_mutex_destroy(&net->mutex);
    pthread_cond_destroy(&net->left);
    free(net->peers);
    free(net);
}

const char *net_host(const struct net *net, uint32_t rank)
{
    return net->peers[rank].host;
}

uint32_t net_connections(struct net *net)
{
    uint32_t count = 0;
    net_enter(net);
    for (uint32_t i = 0; i < net->world * NET_LANES; i++) {
        struct end *end = &net->peers[i / NET_LANES].ends[i % NET_LANES];
        count += end->link && !end->rc ? link_streams(end->link) : 0;
    }
    net_leave(net);
    return count;
}
