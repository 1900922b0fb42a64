/* Messages between ranks of one host: through the tubes of the board. */
#include "comm/mail_inside.h"
#include "comm/tube.h"
#include "os/futex.h"

#define TUBE_ROOM   (128u << 10) /* a power of two; the rest of BOARD_TUBE_BYTES is the head */
#define PIECE_BYTES (TUBE_ROOM / 4)
_Static_assert(TUBE_ROOM + sizeof(struct tube) <= BOARD_TUBE_BYTES, "a tube fits its place");
_Static_assert(MAIL_EAGER_MAX + 2 * sizeof(struct tube_frame) <= TUBE_ROOM, "a short one fits");

static struct tube *tube_of(const struct board *board, uint32_t from, uint32_t to)
{
    uint8_t *at = board->tubes + ((size_t)from * board->ranks + to) * BOARD_TUBE_BYTES;
    return (struct tube *)(void *)at;
}

static void ring(struct board *board, uint32_t rank)
{
    struct line *bell = &board_desk(board, rank)->bell;
    atomic_fetch_add(&bell->value, 1);
    if (atomic_load(&bell->sleepers)) {
        futex_wake(&bell->value, UINT32_MAX);
    }
}

void tube_mail_ring(struct mail *mail)
{
    ring(&mail->group->board, mail->group->board.rank);
}

/* Without a net every rank is on the board, in the group's order. */
static bool put(struct board *board, uint32_t to, const struct mail_item *item, const void *payload)
{
    struct tube_frame frame = {.type = item->kind,
                               .bytes = item->bytes,
                               .tag = item->kind == MAIL_PIECE ? item->offset : item->tag,
                               .id = item->id,
                               .size = item->size};
    if (!tube_put(tube_of(board, board->rank, to), TUBE_ROOM, &frame, payload)) {
        return false;
    }
    ring(board, to);
    return true;
}

bool tube_mail_reply(struct mail *mail, uint32_t to, const struct mail_item *item)
{
    return put(&mail->group->board, to, item, NULL);
}

static bool send_pieces(struct board *board, struct post *post)
{
    bool moved = false;
    const struct tube *tube = tube_of(board, board->rank, post->peer);
    while (post->moved < post->size) {
        uint32_t room = tube_room(tube, TUBE_ROOM);
        room = room < PIECE_BYTES ? room : PIECE_BYTES; /* one is read while the next is written */
        uint64_t left = post->size - post->moved;
        struct mail_item item = {.kind = MAIL_PIECE, .id = post->id, .offset = post->moved};
        item.bytes = left < room ? (uint32_t)left : room;
        if (room == 0 || !put(board, post->peer, &item, post->bytes + post->moved)) {
            break;
        }
        post->moved += item.bytes;
        moved = true;
    }
    return moved;
}

bool tube_mail_send(struct mail *mail, struct post *post)
{
    struct board *board = &mail->group->board;
    struct mail_item item = {.tag = post->tag, .id = post->id, .size = post->size};
    if (post->state == POST_MOVING) {
        bool moved = send_pieces(board, post);
        post->state = post->moved == post->size ? POST_ENDED : POST_MOVING;
        return moved;
    }
    if (post->state != POST_FRESH) {
        return false;
    }
    bool whole = post->size <= MAIL_EAGER_MAX;
    item.kind = whole ? MAIL_WHOLE : MAIL_OFFER;
    item.bytes = whole ? (uint32_t)post->size : 0;
    if (!put(board, post->peer, &item, post->bytes)) {
        return false;
    }
    post->state = whole ? POST_ENDED : POST_OFFERED;
    return true;
}

struct source {
    struct tube *tube;
    struct tube_frame frame;
};

static void take(void *context, const struct mail_item *item, void *to)
{
    struct source *source = context;
    (void)item;
    tube_take(source->tube, TUBE_ROOM, &source->frame, to);
}

static bool receive_one(struct mail *mail, uint32_t from)
{
    struct board *board = &mail->group->board;
    struct source source = {.tube = tube_of(board, from, board->rank)};
    const struct tube_frame *frame = &source.frame;
    if (!tube_peek(source.tube, TUBE_ROOM, &source.frame)) {
        return false;
    }
    struct mail_arrival arrival = {.item = {.kind = (enum mail_kind)frame->type,
                                            .bytes = frame->bytes,
                                            .tag = frame->tag,
                                            .id = frame->id,
                                            .size = frame->size,
                                            .offset = frame->tag},
                                   .from = from,
                                   .take = take,
                                   .context = &source};
    return mail_arrived(mail, &arrival);
}

bool tube_mail_receive(struct mail *mail)
{
    struct board *board = &mail->group->board;
    bool moved = false;
    for (uint32_t from = 0; from < board->ranks; from++) {
        bool some = false;
        while (from != board->rank && receive_one(mail, from)) {
            some = true;
        }
        if (some) { /* its sender may be waiting for room */
            ring(board, from);
        }
        moved |= some;
    }
    return moved;
}

bool tube_mail_pending(struct mail *mail, uint32_t rank)
{
    struct board *board = &mail->group->board;
    struct tube_frame frame;
    return tube_peek(tube_of(board, rank, board->rank), TUBE_ROOM, &frame);
}
