/* Data links to the other members: who is at the door, frames in and out. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/engine.h"
#include "os/sock.h"

/* A send's tag says of which kind it is, and its chunk. */
enum tag_kind { TAG_ASK, TAG_DELTA, TAG_MEAN, TAG_STATE, TAG_MOMENTUM };

static uint64_t tag_of(enum tag_kind kind, uint32_t chunk)
{
    return (uint64_t)kind << 32 | chunk;
}

/* ---- what arrives ------------------------------------------------------------------------ */

static int find_room(struct solo *solo, const struct peer_link *peer, const struct frame *frame,
                     void **room_out)
{
    struct job *job = &solo->job;
    if (frame->type == FRAME_DELTA) {
        uint32_t slot = solo->member.peers[peer->index].round_slot; /* by which it was judged */
        return job_room_delta(job, slot, frame->chunk, frame->size, room_out);
    }
    if (frame->type == FRAME_MEAN) {
        return job_room_mean(job, frame->chunk, frame->size, room_out);
    }
    return job_room_state(job, frame->chunk, frame->flags & FRAME_MOMENTUM, frame->size, room_out);
}

static int on_place(void *context, struct link *link, const struct frame *frame, void **room_out)
{
    struct peer_link *peer = context;
    struct solo *solo = peer->solo;
    if (frame->type != FRAME_DELTA && frame->type != FRAME_MEAN && frame->type != FRAME_STATE) {
        return err_set(SOLO_EPEER, "a %s frame has no business on a data link",
                       frame_name(frame->type));
    }
    switch (member_take(&solo->member, peer->index, frame)) {
    case TAKE_DROP:
        return 1;
    case TAKE_LATER:
        return SOLO_EAGAIN;
    case TAKE_FAULT:
        return err_set(SOLO_EPEER, "a %s frame of chunk %u is out of place",
                       frame_name(frame->type), frame->chunk);
    case TAKE_HERE:
        break;
    }
    if (link_arrives(link, frame)) { /* it would be hashed twice, or change after it was hashed */
        return err_set(SOLO_EPEER, "a %s frame of chunk %u comes twice at once",
                       frame_name(frame->type), frame->chunk);
    }
    TRY(find_room(solo, peer, frame, room_out));
    bool lent = frame->type == FRAME_MEAN || (frame->type == FRAME_DELTA && job_lends(&solo->job));
    return lent && link_in_place(link, frame->size) ? CONN_IN_PLACE : 0;
}

static int take_payload(struct solo *solo, const struct peer_link *peer, const struct frame *frame,
                        const void *payload)
{
    struct job *job = &solo->job;
    if (frame->type == FRAME_DELTA) {
        return job_take_delta(job, solo->member.peers[peer->index].round_slot, frame->chunk,
                              payload);
    }
    return frame->type == FRAME_MEAN ? job_take_mean(job, frame->chunk, payload) : 0;
}

/* A delta that lies in the link's memory is summed from there, or kept. */
static void use_lent(struct solo *solo, const struct peer_link *peer, uint32_t generation,
                     uint32_t chunk)
{
    if (peer->generation != generation || solo->ended) {
        job_link_gone(&solo->job);
    } else if (!work_reduce_now(solo, chunk)) {
        job_keep(&solo->job);
    }
}

static int on_frame(void *context, struct link *link, const struct frame *frame,
                    const void *payload)
{
    struct peer_link *peer = context;
    struct solo *solo = peer->solo;
    (void)link;
    uint32_t generation = peer->generation;
    bool asks = frame->type == FRAME_FETCH || frame->type == FRAME_NO_STATE;
    if (!asks && frame->size == 0) {
        return err_set(SOLO_EPEER, "an empty %s frame", frame_name(frame->type));
    }
    if (!asks) {
        TRY(take_payload(solo, peer, frame, payload));
    }
    solo->received_bytes += FRAME_HEADER_BYTES + frame->size;
    struct member_event event = drive_event(solo, MEMBER_RECEIVED);
    event.peer = peer->index;
    event.frame = frame;
    drive_feed(solo, &event);
    if (frame->type == FRAME_DELTA && job_lends(&solo->job)) {
        use_lent(solo, peer, generation, frame->chunk);
    }
    return 0;
}

/* Chunks that waited for it may be made now. */
static void on_room(void *context, struct link *link)
{
    struct peer_link *peer = context;
    (void)link;
    work_again(peer->solo);
}

/* ---- what was sent ----------------------------------------------------------------------- */

static void on_sent(void *context, struct link *link, uint64_t tag)
{
    static const enum frame_type types[] = {FRAME_FETCH, FRAME_DELTA, FRAME_MEAN, FRAME_STATE,
                                            FRAME_STATE};
    struct peer_link *peer = context;
    struct solo *solo = peer->solo;
    (void)link;
    enum tag_kind kind = (enum tag_kind)(tag >> 32);
    if (kind == TAG_ASK) {
        return;
    }
    bool state = kind == TAG_STATE || kind == TAG_MOMENTUM;
    struct round_id id = solo->member.round.id;
    struct frame frame = {
        .type = types[kind],
        .flags = kind == TAG_MOMENTUM ? FRAME_MOMENTUM : 0,
        .epoch = id.epoch,
        .round = state ? solo->member.held.version : id.round,
        .attempt = id.attempt,
        .chunk = (uint32_t)tag,
    };
    struct member_event event = drive_event(solo, MEMBER_SENT);
    event.peer = peer->index;
    event.frame = &frame;
    drive_feed(solo, &event);
}

/* ---- a link's life ----------------------------------------------------------------------- */

static void forget_link(struct peer_link *peer)
{
    link_free(peer->link);
    peer->link = NULL;
    peer->generation++;
}

static void on_open(void *context, struct link *link)
{
    struct peer_link *peer = context;
    (void)link;
    struct member_event event = drive_event(peer->solo, MEMBER_LINK_UP);
    event.peer = peer->index;
    drive_feed(peer->solo, &event);
}

static void feed_down(struct peer_link *peer, int rc, const char *text)
{
    struct member_event event = drive_event(peer->solo, MEMBER_LINK_DOWN);
    event.peer = peer->index;
    event.rc = rc;
    event.text = text;
    drive_feed(peer->solo, &event);
}

static void on_lost(void *context, struct link *link, int rc, const char *text)
{
    struct peer_link *peer = context;
    (void)link;
    char copy[MSG_REASON_MAX]; /* the text may be the link's */
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    log_line(SOLO_LOG_DEBUG, "solo: link to node %u is lost: %s",
             peer->solo->member.peers[peer->index].node_rank, copy);
    forget_link(peer);
    feed_down(peer, rc, copy);
}

static const struct link_calls calls = {.open = on_open,
                                        .place = on_place,
                                        .frame = on_frame,
                                        .sent = on_sent,
                                        .room = on_room,
                                        .lost = on_lost};

static void down_later(struct solo *solo, struct peer_link *peer, int rc)
{
    peer->lost_rc = rc;
    snprintf(peer->lost_text, sizeof peer->lost_text, "%s", err_text());
    struct work work = {
        .kind = WORK_LINK_DOWN, .peer = peer->index, .generation = peer->generation, .rc = rc};
    work_add(solo, &work);
}

static struct link_config link_settings(struct solo *solo, struct peer_link *peer)
{
    return (struct link_config){
        .loop = solo->loop,
        .job_id = solo->settings.job_id,
        .token = solo->settings.token,
        .insecure = solo->settings.insecure,
        .role = HELLO_DATA,
        .calls = &calls,
        .context = peer,
        .streams = solo->settings.streams,
        .shm = solo->settings.same_host_shm,
        .hello_us = ENGINE_HELLO_US,
    };
}

void peer_connect(struct solo *solo, uint32_t index)
{
    struct peer_link *peer = &solo->links[index];
    const struct peer *whom = &solo->member.peers[index];
    struct msg msg = {.type = FRAME_LINK};
    msg.as.link = (struct msg_link){
        .node_rank = solo->settings.node_rank,
        .stream_count = 1,
        .instance = solo->member.config.identity.instance,
        .to_instance = whom->instance,
    };
    uint8_t payload[LINK_GREETING_MAX];
    int size = msg_encode(&msg, payload, sizeof payload);
    MUST(size >= 0);
    forget_link(peer);
    peer->dialed = true;
    peer->made = ++solo->links_made;
    struct frame greeting = {.type = FRAME_LINK, .extra = peer->made};
    struct link_config config = link_settings(solo, peer);
    config.greeting = &greeting;
    config.greeting_payload = payload;
    config.greeting_size = (size_t)size;
    struct solo_url url;
    int rc = solo_url_parse(whom->address, &url);
    rc = rc < 0 ? rc : link_dial(&config, &url, &peer->link);
    if (rc < 0) {
        down_later(solo, peer, rc);
    }
}

void peer_close(struct solo *solo, uint32_t index)
{
    forget_link(&solo->links[index]);
}

/* ---- the door ---------------------------------------------------------------------------- */

static int admit_link(struct solo *solo, struct conn *conn, struct peer_link *peer, uint64_t made)
{
    if (peer->link && !peer->dialed && peer->made == made) {
        return link_add(peer->link, conn);
    }
    if (peer->link && !peer->dialed && made < peer->made) {
        return err_set(SOLO_ECLOSED, "a late stream of a link that node %u has replaced",
                       solo->member.peers[peer->index].node_rank);
    }
    if (peer->link) { /* its maker has begun anew and knows that this one is dead */
        forget_link(peer);
        feed_down(peer, SOLO_ECLOSED, "it connected again");
    }
    if (peer->link || solo->ended) {
        return err_set(SOLO_EAGAIN, "node %u is being connected to already",
                       solo->member.peers[peer->index].node_rank);
    }
    struct link_config config = link_settings(solo, peer);
    TRY(link_accept(&config, conn, &peer->link));
    peer->dialed = false;
    peer->made = made;
    on_open(peer, peer->link);
    return 0;
}

static int on_admit(void *context, struct conn *conn, const struct frame *first,
                    const void *payload)
{
    struct solo *solo = context;
    if (first->type != FRAME_LINK) {
        return err_set(SOLO_EPEER, "the first frame is %s, not LINK", frame_name(first->type));
    }
    struct msg msg = {0};
    TRY(msg_decode(first->type, payload, first->size, &msg));
    const struct msg_link *said = &msg.as.link;
    if (said->to_instance != solo->member.config.identity.instance || solo->ended) {
        return err_set(SOLO_EREFUSED, "node %u looks for another process", said->node_rank);
    }
    int index = member_peer_of(&solo->member, said->node_rank, said->instance);
    if (index < 0) {
        return err_set(SOLO_EREFUSED, "node %u is not known yet", said->node_rank);
    }
    return admit_link(solo, conn, &solo->links[index], first->extra);
}

static void on_refused(void *context, const char *from, int rc, const char *text)
{
    (void)context;
    log_line(SOLO_LOG_INFO, "solo: turned away %s: %s (%s)", from, text, solo_error_name(rc));
}

static const struct door_calls door_calls = {.admit = on_admit, .refused = on_refused};

/* Where others reach this node, as --worker_url says or as the route to the master has it. */
static int own_url(const struct settings *settings, struct solo_url *out)
{
    if (settings->worker_url[0]) {
        TRY(solo_url_parse(settings->worker_url, out));
        const char *colon = strrchr(settings->worker_url, ':');
        bool has_port = colon && colon[1] >= '0' && colon[1] <= '9' && !strchr(colon, ']');
        out->port = has_port ? out->port : 0;
        return 0;
    }
    out->port = 0;
    return solo_route_address(&settings->master, out->host, sizeof out->host);
}

int peer_listen(struct solo *solo)
{
    struct solo_url url;
    TRY(own_url(&solo->settings, &url));
    struct solo_url everywhere = {.host = "", .port = url.port};
    int fd;
    uint16_t port;
    int rc = sock_listen(&url, &fd, &port);
    if (rc < 0 && rc != SOLO_EINUSE) { /* behind a NAT the address is not this machine's */
        rc = sock_listen(&everywhere, &fd, &port);
    }
    TRY(rc);
    struct door_config config = {
        .loop = solo->loop,
        .job_id = solo->settings.job_id,
        .token = solo->settings.token,
        .insecure = solo->settings.insecure,
        .roles = 1u << HELLO_DATA,
        .calls = &door_calls,
        .context = solo,
        .listen_fd = fd,
    };
    TRY(door_open(&config, &solo->door));
    char *address = solo->member.config.identity.address;
    bool v6 = strchr(url.host, ':') != NULL;
    snprintf(address, MSG_TEXT_MAX, v6 ? "[%.100s]:%u" : "%.100s:%u", url.host, port);
    return 0;
}

/* ---- sending ----------------------------------------------------------------------------- */

static bool send_frame(struct solo *solo, struct peer_link *peer, const struct frame *frame,
                       const void *payload, uint32_t size, uint64_t tag)
{
    if (!peer->link) {
        return false; /* LINK_DOWN is on its way */
    }
    int rc = link_send(peer->link, frame, payload, size, tag);
    if (rc < 0 && rc != SOLO_ECLOSED) {
        down_later(solo, peer, rc);
    }
    solo->sent_bytes += rc < 0 ? 0 : FRAME_HEADER_BYTES + size;
    return rc >= 0;
}

void peer_send_chunk(struct solo *solo, const struct action *action)
{
    struct round_id id = solo->member.round.id;
    bool delta = action->type == ACTION_SEND_DELTA;
    struct frame frame = {.type = delta ? FRAME_DELTA : FRAME_MEAN,
                          .epoch = id.epoch,
                          .round = id.round,
                          .attempt = id.attempt,
                          .chunk = action->chunk};
    uint32_t size;
    const void *bytes = delta ? job_delta(&solo->job, action->chunk, &size)
                              : job_mean(&solo->job, action->chunk, &size);
    bool made = solo->job.made.at == bytes; /* in the link's memory: it is not borrowed */
    bool sent = send_frame(solo, &solo->links[action->peer], &frame, bytes, size,
                           tag_of(delta ? TAG_DELTA : TAG_MEAN, action->chunk));
    if (made && sent) {
        job_made_sent(&solo->job);
    }
}

void peer_send_state(struct solo *solo, const struct action *action)
{
    struct peer_link *peer = &solo->links[action->peer];
    bool momentum = action->kind == STATE_MOMENTUM;
    struct frame frame = {
        .type = action->type == ACTION_FETCH ? FRAME_FETCH : FRAME_NO_STATE,
        .flags = momentum ? FRAME_MOMENTUM : 0,
        .epoch = solo->member.epoch,
        .round = action->version,
        .chunk = action->chunk,
    };
    uint32_t size = 0;
    const void *bytes = NULL;
    if (action->type == ACTION_FETCH) {
        work_fetch(solo, action->version);
    } else if (action->type == ACTION_SERVE) {
        bytes = job_state(&solo->job, action->chunk, momentum, &size);
    }
    if (!bytes) {
        send_frame(solo, peer, &frame, NULL, 0, tag_of(TAG_ASK, 0));
        return;
    }
    frame.type = FRAME_STATE;
    send_frame(solo, peer, &frame, bytes, size,
               tag_of(momentum ? TAG_MOMENTUM : TAG_STATE, action->chunk));
}

void peer_resume_all(struct solo *solo)
{
    for (uint32_t i = 0; i < SOLO_MEMBERS_MAX; i++) {
        if (solo->links[i].link) {
            link_resume(solo->links[i].link);
        }
    }
}

void peer_release_all(struct solo *solo, const struct area *area)
{
    for (uint32_t i = 0; i < SOLO_MEMBERS_MAX && area->base; i++) {
        struct peer_link *peer = &solo->links[i];
        if (!peer->link) {
            continue;
        }
        link_divert(peer->link, area->base, area->size);
        int rc = link_forget(peer->link, area->base, area->size);
        if (rc < 0) { /* no memory for copies: the link has to go, or it reads what changes */
            forget_link(peer);
            down_later(solo, peer, rc);
        }
    }
}

void peer_close_all(struct solo *solo)
{
    for (uint32_t i = 0; i < SOLO_MEMBERS_MAX; i++) {
        forget_link(&solo->links[i]);
    }
}

void peer_free_all(struct solo *solo)
{
    door_close(solo->door);
    solo->door = NULL;
    peer_close_all(solo);
}
