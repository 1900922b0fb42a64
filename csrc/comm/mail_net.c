/* Messages to ranks of other hosts: over the mail lane of the net, which keeps order. */
#include <string.h>

#include "base/err.h"
#include "comm/mail_inside.h"

#define WHOLE_MAX   (64u << 10)  /* longer messages are offered first */
#define FRAME_BYTES (256u << 10) /* of a piece */
#define AHEAD_MAX   16u          /* frames of one message that a link may hold */
#define TAG_NOTHING 0u           /* of replies: no post waits for them */

static struct frame frame_of(const struct mail_item *item)
{
    return (struct frame){.type = FRAME_GROUP,
                          .flags = (uint8_t)item->kind,
                          .epoch = {.incarnation = item->size},
                          .round = item->id,
                          .extra = item->kind == MAIL_PIECE ? item->offset : item->tag};
}

static struct mail_item item_of(const struct frame *frame)
{
    return (struct mail_item){.kind = (enum mail_kind)frame->flags,
                              .bytes = frame->size,
                              .tag = frame->extra,
                              .id = frame->round,
                              .size = frame->epoch.incarnation,
                              .offset = frame->extra};
}

static bool put(struct mail *mail, uint32_t to, const struct mail_item *item, const void *payload,
                uint64_t tag)
{
    struct frame frame = frame_of(item);
    return net_send(mail->group->net, to, NET_MAIL, &frame, payload, item->bytes, tag) == 0;
}

bool net_mail_reply(struct mail *mail, uint32_t to, const struct mail_item *item)
{
    return put(mail, to, item, NULL, TAG_NOTHING);
}

static bool send_pieces(struct mail *mail, struct post *post)
{
    bool moved = false;
    while (post->moved < post->size && post->borrowed < AHEAD_MAX) {
        uint64_t left = post->size - post->moved;
        struct mail_item item = {.kind = MAIL_PIECE, .id = post->id, .offset = post->moved};
        item.bytes = left < FRAME_BYTES ? (uint32_t)left : FRAME_BYTES;
        if (!put(mail, post->peer, &item, post->bytes + post->moved, post->id)) {
            break;
        }
        post->moved += item.bytes;
        post->borrowed++;
        moved = true;
    }
    return moved;
}

static bool begin(struct mail *mail, struct post *post)
{
    bool whole = post->size <= WHOLE_MAX;
    struct mail_item item = {.kind = whole ? MAIL_WHOLE : MAIL_OFFER,
                             .bytes = whole ? (uint32_t)post->size : 0,
                             .tag = post->tag,
                             .id = post->id,
                             .size = post->size};
    if (!put(mail, post->peer, &item, post->bytes, whole ? post->id : TAG_NOTHING)) {
        return false;
    }
    post->state = whole ? POST_MOVING : POST_OFFERED;
    post->moved = whole ? post->size : 0;
    post->borrowed = whole;
    return true;
}

bool net_mail_send(struct mail *mail, struct post *post)
{
    bool moved = false;
    if (post->state == POST_FRESH) {
        moved = begin(mail, post);
    } else if (post->state == POST_MOVING) {
        moved = send_pieces(mail, post);
    }
    if (post->state == POST_MOVING && post->moved == post->size && post->borrowed == 0) {
        post->state = POST_ENDED;
    }
    return moved;
}

static int on_place(void *context, uint32_t from, const struct frame *frame, void **room_out)
{
    struct mail *mail = context;
    struct mail_item item = item_of(frame);
    if (item.kind == MAIL_WHOLE) {
        if (frame->size > WHOLE_MAX || frame->size != item.size) {
            return err_set(SOLO_EPEER, "rank %u sent a short message of %u bytes", from,
                           frame->size);
        }
        pthread_mutex_lock(&mail->mutex);
        bool full = mail->kept + frame->size > MAIL_KEPT_MAX;
        pthread_mutex_unlock(&mail->mutex);
        return full ? SOLO_EAGAIN : 0;
    }
    if (item.kind != MAIL_PIECE) {
        return err_set(SOLO_EPEER, "rank %u sent a message of no kind", from);
    }
    pthread_mutex_lock(&mail->mutex);
    struct post *post = mail_receiver(mail, from, &item);
    *room_out = post ? post->bytes + item.offset : NULL;
    pthread_mutex_unlock(&mail->mutex);
    return post ? 0 : 1;
}

static void take(void *context, const struct mail_item *item, void *to)
{
    if (to && item->bytes && to != context) {
        memcpy(to, context, item->bytes);
    }
}

static int on_frame(void *context, uint32_t from, const struct frame *frame, const void *payload)
{
    struct mail *mail = context;
    struct mail_arrival arrival = {.item = item_of(frame), .from = from, .take = take};
    memcpy(&arrival.context, &payload, sizeof payload); /* only read */
    pthread_mutex_lock(&mail->mutex);
    bool taken = mail_arrived(mail, &arrival);
    mail_call_thread(mail);
    pthread_mutex_unlock(&mail->mutex);
    return taken ? 0 : err_set(SOLO_ENOMEM, "no memory for a message of rank %u", from);
}

static void on_sent(void *context, uint32_t to, uint64_t tag)
{
    struct mail *mail = context;
    (void)to;
    pthread_mutex_lock(&mail->mutex);
    for (struct post *post = mail->sends.first; post && tag != TAG_NOTHING; post = post->next) {
        if (post->id == tag) {
            post->borrowed--;
            break;
        }
    }
    pthread_mutex_unlock(&mail->mutex);
}

void net_mail_serve(struct mail *mail)
{
    static const struct net_calls calls = {on_place, on_frame, on_sent};
    net_serve(mail->group->net, NET_MAIL, &calls, mail);
}

int net_mail_reach(struct mail *mail, const struct post *post)
{
    const struct solo_group *group = mail->group;
    if (post->peer != SOLO_ANY_SOURCE) {
        return net_reach(group->net, post->peer, NET_MAIL);
    }
    uint32_t left = 0; /* one that leaves in good order need not be the one that is waited for */
    for (uint32_t i = 0; i < group->world; i++) {
        int rc = i == group->rank ? 0 : net_reach(group->net, i, NET_MAIL);
        left += rc < 0;
        if (rc < 0 && (!net_has_left(group->net, i) || left == group->world - 1)) {
            return rc;
        }
    }
    return 0;
}

void net_mail_give_up(struct mail *mail, const struct post *post)
{
    struct net *net = mail->group->net;
    if (post->receive) {
        net_divert(net, post->bytes, post->size);
    } else if (post->borrowed) { /* the link holds the caller's memory */
        net_cut(net, post->peer, NET_MAIL);
    }
}
