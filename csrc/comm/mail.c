#include "comm/mail.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "comm/tube.h"
#include "os/clock.h"
#include "os/futex.h"

enum frame_type {
    FRAME_WHOLE = 1, /* a short message: tag, payload */
    FRAME_OFFER,     /* a long one: tag, id, size */
    FRAME_WANT,      /* send the message of this id */
    FRAME_REFUSE,    /* of this id: `size` is what the receiver has room for */
    FRAME_PIECE,     /* the next bytes of this id */
};

/* One posted send or receive. */
struct post {
    struct post *next;
    bool receive;
    uint32_t peer; /* rank in the group, or SOLO_ANY_SOURCE */
    uint64_t tag, id, size, moved, begun_us, deadline_us;
    uint8_t *bytes;
    enum { POST_FRESH, POST_OFFERED, POST_MOVING, POST_ENDED } state;
    solo_done_fn done;
    void *context;
    int rc;
    char *text; /* of an error; owned */
};

/* A message that came before it was asked for. */
struct letter {
    struct letter *next;
    uint32_t peer;
    uint64_t tag, id, size;
    bool offer; /* still with its sender */
    uint8_t bytes[];
};

struct posts {
    struct post *first, **end;
};

struct mail {
    struct solo_group *group;
    pthread_mutex_t mutex;
    pthread_cond_t posted;
    struct posts sends, receives, ended;
    struct letter *letters, **letters_end;
    uint64_t kept, next_id;
    struct thread thread;
    bool has_thread, closing;
};

/* ---- lists --------------------------------------------------------------------------------------
 */

static void append(struct posts *list, struct post *post)
{
    post->next = NULL;
    *list->end = post;
    list->end = &post->next;
}

static void unlink_at(struct posts *list, struct post **at)
{
    struct post *post = *at;
    *at = post->next;
    if (list->end == &post->next) {
        list->end = at;
    }
}

static void end_post(struct mail *mail, struct posts *list, struct post **at, int rc,
                     const char *text)
{
    struct post *post = *at;
    unlink_at(list, at);
    post->rc = rc;
    post->text = rc < 0 ? strdup(text) : NULL;
    append(&mail->ended, post);
}

/* ---- tubes
 * --------------------------------------------------------------------------------------- */

#define TUBE_ROOM 8192u /* the power of two below BOARD_TUBE_BYTES less the head */
_Static_assert(TUBE_ROOM + sizeof(struct tube) <= BOARD_TUBE_BYTES, "a tube fits its place");
_Static_assert(MAIL_EAGER_MAX + 2 * sizeof(struct tube_frame) <= TUBE_ROOM, "a short one fits");

static struct tube *tube_of(const struct board *board, uint32_t from, uint32_t to)
{
    uint8_t *at = board->tubes + ((size_t)from * board->ranks + to) * BOARD_TUBE_BYTES;
    return (struct tube *)(void *)at;
}

static void toll(struct board *board, uint32_t rank)
{
    struct line *bell = &board_desk(board, rank)->bell;
    atomic_fetch_add(&bell->value, 1);
    if (atomic_load(&bell->sleepers)) {
        futex_wake(&bell->value, UINT32_MAX);
    }
}

/* Group rank to board rank; the board holds them ascending. */
static bool local_of(const struct board *board, uint32_t global, uint32_t *out)
{
    for (uint32_t i = 0; i < board->ranks; i++) {
        if (board->global[i] == global) {
            *out = i;
            return true;
        }
    }
    return false;
}

static bool put(struct board *board, uint32_t to, const struct tube_frame *frame,
                const void *payload)
{
    if (!tube_put(tube_of(board, board->rank, to), TUBE_ROOM, frame, payload)) {
        return false;
    }
    toll(board, to);
    return true;
}

/* ---- sending
 * ---------------------------------------------------------------------------------------- */

static bool send_pieces(struct board *board, uint32_t to, struct post *post)
{
    bool moved = false;
    while (post->moved < post->size) {
        uint32_t room = tube_room(tube_of(board, board->rank, to), TUBE_ROOM);
        uint64_t left = post->size - post->moved;
        if (room == 0) {
            break;
        }
        uint32_t bytes = left < room ? (uint32_t)left : room;
        struct tube_frame frame = {.type = FRAME_PIECE, .bytes = bytes, .id = post->id};
        if (!put(board, to, &frame, post->bytes + post->moved)) {
            break;
        }
        post->moved += bytes;
        moved = true;
    }
    return moved;
}

/* A send that has not begun must wait for earlier ones to the same rank: order is kept. */
static bool send_step(struct mail *mail, struct post *post)
{
    struct board *board = &mail->group->board;
    uint32_t to;
    if (!local_of(board, post->peer, &to)) {
        return false;
    }
    if (post->state == POST_FRESH && post->size <= MAIL_EAGER_MAX) {
        struct tube_frame frame = {.type = FRAME_WHOLE,
                                   .bytes = (uint32_t)post->size,
                                   .tag = post->tag,
                                   .size = post->size};
        if (put(board, to, &frame, post->bytes)) {
            post->state = POST_ENDED;
            return true;
        }
    } else if (post->state == POST_FRESH) {
        struct tube_frame frame = {
            .type = FRAME_OFFER, .tag = post->tag, .id = post->id, .size = post->size};
        if (put(board, to, &frame, NULL)) {
            post->state = POST_OFFERED;
            return true;
        }
    } else if (post->state == POST_MOVING) {
        bool moved = send_pieces(board, to, post);
        post->state = post->moved == post->size ? POST_ENDED : POST_MOVING;
        return moved;
    }
    return false;
}

static bool waits_before(const struct mail *mail, const struct post *post)
{
    for (const struct post *at = mail->sends.first; at != post; at = at->next) {
        if (at->peer == post->peer && at->state == POST_FRESH) {
            return true;
        }
    }
    return false;
}

static bool send_all(struct mail *mail)
{
    bool moved = false;
    for (struct post **at = &mail->sends.first; *at;) {
        struct post *post = *at;
        if (post->state != POST_FRESH || !waits_before(mail, post)) {
            moved |= send_step(mail, post);
        }
        if (post->state == POST_ENDED) {
            end_post(mail, &mail->sends, at, 0, NULL);
        } else {
            at = &post->next;
        }
    }
    return moved;
}

/* ---- receiving
 * --------------------------------------------------------------------------------------- */

static struct post **match(struct mail *mail, uint32_t from, uint64_t tag)
{
    for (struct post **at = &mail->receives.first; *at; at = &(*at)->next) {
        const struct post *post = *at;
        if (post->state == POST_FRESH && post->tag == tag &&
            (post->peer == from || post->peer == SOLO_ANY_SOURCE)) {
            return at;
        }
    }
    return NULL;
}

static void end_unequal(struct mail *mail, struct post **at, uint32_t from, uint64_t size)
{
    char text[160];
    snprintf(text, sizeof text,
             "message with tag %" PRId64 " from rank %u has %" PRIu64
             " bytes, the receive on rank %u expects %" PRIu64,
             (int64_t)(*at)->tag, from, size, mail->group->rank, (*at)->size);
    end_post(mail, &mail->receives, at, SOLO_EMISMATCH, text);
}

/* Answers an offer. False: the tube to its sender is full. */
static bool answer(struct mail *mail, struct post **at, uint32_t from, uint64_t id, uint64_t size)
{
    struct board *board = &mail->group->board;
    struct post *post = *at;
    bool fits = post->size == size;
    struct tube_frame frame = {
        .type = fits ? FRAME_WANT : FRAME_REFUSE, .id = id, .size = post->size};
    uint32_t to;
    if (!local_of(board, from, &to) || !put(board, to, &frame, NULL)) {
        return false;
    }
    post->peer = from;
    if (fits) {
        post->id = id;
        post->state = POST_MOVING;
    } else {
        end_unequal(mail, at, from, size);
    }
    return true;
}

static bool keep(struct mail *mail, struct tube *tube, uint32_t from,
                 const struct tube_frame *frame)
{
    if (mail->kept + frame->bytes > MAIL_KEPT_MAX) {
        return false;
    }
    struct letter *letter = malloc(sizeof *letter + frame->bytes);
    if (!letter) {
        return false;
    }
    *letter = (struct letter){.peer = from,
                              .tag = frame->tag,
                              .id = frame->id,
                              .size = frame->size,
                              .offer = frame->type == FRAME_OFFER};
    tube_take(tube, TUBE_ROOM, frame, letter->bytes);
    mail->kept += frame->bytes;
    *mail->letters_end = letter;
    mail->letters_end = &letter->next;
    return true;
}

static bool receive_whole(struct mail *mail, struct tube *tube, uint32_t from,
                          const struct tube_frame *frame)
{
    struct post **at = match(mail, from, frame->tag);
    if (!at) {
        return keep(mail, tube, from, frame);
    }
    bool fits = (*at)->size == frame->size;
    tube_take(tube, TUBE_ROOM, frame, fits ? (*at)->bytes : NULL);
    (*at)->peer = from;
    if (fits) {
        end_post(mail, &mail->receives, at, 0, NULL);
    } else {
        end_unequal(mail, at, from, frame->size);
    }
    return true;
}

static bool receive_offer(struct mail *mail, struct tube *tube, uint32_t from,
                          const struct tube_frame *frame)
{
    struct post **at = match(mail, from, frame->tag);
    if (!at) {
        return keep(mail, tube, from, frame);
    }
    if (!answer(mail, at, from, frame->id, frame->size)) {
        return false;
    }
    tube_take(tube, TUBE_ROOM, frame, NULL);
    return true;
}

static void receive_piece(struct mail *mail, struct tube *tube, uint32_t from,
                          const struct tube_frame *frame)
{
    for (struct post **at = &mail->receives.first; *at; at = &(*at)->next) {
        struct post *post = *at;
        if (post->state != POST_MOVING || post->peer != from || post->id != frame->id ||
            post->size - post->moved < frame->bytes) {
            continue;
        }
        tube_take(tube, TUBE_ROOM, frame, post->bytes + post->moved);
        post->moved += frame->bytes;
        if (post->moved == post->size) {
            end_post(mail, &mail->receives, at, 0, NULL);
        }
        return;
    }
    tube_take(tube, TUBE_ROOM, frame, NULL); /* of a receive that was given up */
}

static void receive_reply(struct mail *mail, uint32_t from, const struct tube_frame *frame)
{
    for (struct post **at = &mail->sends.first; *at; at = &(*at)->next) {
        struct post *post = *at;
        if (post->state != POST_OFFERED || post->peer != from || post->id != frame->id) {
            continue;
        }
        if (frame->type == FRAME_WANT) {
            post->state = POST_MOVING;
        } else {
            char text[160];
            snprintf(text, sizeof text,
                     "message with tag %" PRId64 " to rank %u has %" PRIu64
                     " bytes, the receive there expects %" PRIu64,
                     (int64_t)post->tag, from, post->size, frame->size);
            end_post(mail, &mail->sends, at, SOLO_EMISMATCH, text);
        }
        return;
    }
}

/* One frame of one tube; false: none, or it has to wait. */
static bool receive_one(struct mail *mail, uint32_t local)
{
    struct board *board = &mail->group->board;
    struct tube *tube = tube_of(board, local, board->rank);
    struct tube_frame frame;
    uint32_t from = board->global[local];
    if (!tube_peek(tube, TUBE_ROOM, &frame)) {
        return false;
    }
    switch ((enum frame_type)frame.type) {
    case FRAME_WHOLE:
        return receive_whole(mail, tube, from, &frame);
    case FRAME_OFFER:
        return receive_offer(mail, tube, from, &frame);
    case FRAME_PIECE:
        receive_piece(mail, tube, from, &frame);
        return true;
    case FRAME_WANT:
    case FRAME_REFUSE:
        tube_take(tube, TUBE_ROOM, &frame, NULL);
        receive_reply(mail, from, &frame);
        return true;
    }
    return false;
}

static bool receive_all(struct mail *mail)
{
    struct board *board = &mail->group->board;
    bool moved = false;
    for (uint32_t local = 0; local < board->ranks; local++) {
        bool some = false;
        while (local != board->rank && receive_one(mail, local)) {
            some = true;
        }
        if (some) { /* its sender may be waiting for room */
            toll(board, local);
        }
        moved |= some;
    }
    return moved;
}

/* Gives letters that came early to receives that were posted late. */
static bool open_letters(struct mail *mail)
{
    bool moved = false;
    for (struct letter **at = &mail->letters; *at;) {
        struct letter *letter = *at;
        struct post **post = match(mail, letter->peer, letter->tag);
        if (!post ||
            (letter->offer && !answer(mail, post, letter->peer, letter->id, letter->size))) {
            at = &letter->next;
            continue;
        }
        if (!letter->offer) {
            (*post)->peer = letter->peer;
            if ((*post)->size == letter->size) {
                memcpy((*post)->bytes, letter->bytes, letter->size);
                end_post(mail, &mail->receives, post, 0, NULL);
            } else {
                end_unequal(mail, post, letter->peer, letter->size);
            }
            mail->kept -= letter->size;
        }
        *at = letter->next;
        mail->letters_end = mail->letters_end == &letter->next ? at : mail->letters_end;
        free(letter);
        moved = true;
    }
    return moved;
}

/* ---- what can go wrong
 * ---------------------------------------------------------------------------------- */

static int fault_of(struct mail *mail, const struct post *post, uint64_t now_us)
{
    struct board *board = &mail->group->board;
    TRY(group_usable(mail->group));
    TRY(board_broken(board));
    for (uint32_t i = 0; i < board->ranks; i++) {
        bool matters =
            board->global[i] == post->peer || (post->peer == SOLO_ANY_SOURCE && i != board->rank);
        struct tube_frame frame;
        if (matters && !tube_peek(tube_of(board, i, board->rank), TUBE_ROOM, &frame)) {
            TRY(board_alive(board, i));
        }
    }
    if (now_us <= post->deadline_us) {
        return 0;
    }
    char peer[24] = "any rank";
    if (post->peer != SOLO_ANY_SOURCE) {
        snprintf(peer, sizeof peer, "rank %u", post->peer);
    }
    return err_set(SOLO_ETIMEDOUT,
                   "%s %s, tag %" PRId64 ", %" PRIu64 " bytes: Timed out after %.1f s with %" PRIu64
                   " bytes moved",
                   post->receive ? "receive from" : "send to", peer, (int64_t)post->tag, post->size,
                   (double)(now_us - post->begun_us) / 1e6, post->moved);
}

static void end_faulty(struct mail *mail, struct posts *list, uint64_t now_us)
{
    for (struct post **at = &list->first; *at;) {
        int rc = fault_of(mail, *at, now_us);
        if (rc < 0) {
            char text[SOLO_TEXT_MAX];
            snprintf(text, sizeof text, "%s", err_text());
            end_post(mail, list, at, rc, text);
        } else {
            at = &(*at)->next;
        }
    }
}

/* ---- moving on
 * --------------------------------------------------------------------------------------------- */

static bool progress(struct mail *mail)
{
    bool moved = false, any = false;
    do {
        moved = open_letters(mail);
        moved |= receive_all(mail);
        moved |= send_all(mail);
        any |= moved;
    } while (moved);
    return any;
}

/* With the mutex held, which is given up while callbacks run. */
static void tell_ended(struct mail *mail)
{
    while (mail->ended.first) {
        struct post *post = mail->ended.first;
        unlink_at(&mail->ended, &mail->ended.first);
        pthread_mutex_unlock(&mail->mutex);
        post->done(post->context, post->rc, post->text ? post->text : "", post->peer);
        free(post->text);
        free(post);
        pthread_mutex_lock(&mail->mutex);
    }
}

static void carry(void *context)
{
    struct mail *mail = context;
    struct solo_group *group = mail->group;
    struct line *bell = &board_desk(&group->board, group->board.rank)->bell;
    pthread_detach(pthread_self());
    pthread_mutex_lock(&mail->mutex);
    while (!mail->closing) {
        if (!mail->sends.first && !mail->receives.first) {
            pthread_cond_wait(&mail->posted, &mail->mutex);
            continue;
        }
        uint32_t rung = atomic_load(&bell->value);
        bool moved = progress(mail);
        uint64_t now_us = clock_us();
        end_faulty(mail, &mail->sends, now_us);
        end_faulty(mail, &mail->receives, now_us);
        if (!moved && !mail->ended.first) {
            pthread_mutex_unlock(&mail->mutex);
            atomic_fetch_add(&bell->sleepers, 1);
            futex_wait(&bell->value, rung, now_us + LINE_CHECK_US);
            atomic_fetch_sub(&bell->sleepers, 1);
            pthread_mutex_lock(&mail->mutex);
        }
        tell_ended(mail);
    }
    pthread_mutex_unlock(&mail->mutex);
    group_release(group);
}

/* ---- the interface
 * ---------------------------------------------------------------------------------------------- */

int mail_new(struct solo_group *group, struct mail **out)
{
    struct mail *mail = calloc(1, sizeof *mail);
    if (!mail) {
        return err_set(SOLO_ENOMEM, "no memory for messages");
    }
    mail->group = group;
    mail->sends.end = &mail->sends.first;
    mail->receives.end = &mail->receives.first;
    mail->ended.end = &mail->ended.first;
    mail->letters_end = &mail->letters;
    pthread_mutex_init(&mail->mutex, NULL);
    pthread_cond_init(&mail->posted, NULL);
    *out = mail;
    return 0;
}

void mail_free(struct mail *mail)
{
    if (!mail) {
        return;
    }
    while (mail->letters) {
        struct letter *next = mail->letters->next;
        free(mail->letters);
        mail->letters = next;
    }
    pthread_mutex_destroy(&mail->mutex);
    pthread_cond_destroy(&mail->posted);
    free(mail);
}

uint64_t mail_kept_bytes(struct mail *mail)
{
    pthread_mutex_lock(&mail->mutex);
    uint64_t bytes = mail->kept;
    pthread_mutex_unlock(&mail->mutex);
    return bytes;
}

bool mail_idle(struct mail *mail, bool sends_only)
{
    pthread_mutex_lock(&mail->mutex);
    bool idle = !mail->sends.first && (sends_only || !mail->receives.first);
    pthread_mutex_unlock(&mail->mutex);
    return idle;
}

void mail_hang_up(struct mail *mail, int rc, const char *text)
{
    pthread_mutex_lock(&mail->mutex);
    mail->closing = true;
    while (mail->sends.first) {
        end_post(mail, &mail->sends, &mail->sends.first, rc, text);
    }
    while (mail->receives.first) {
        end_post(mail, &mail->receives, &mail->receives.first, rc, text);
    }
    pthread_cond_broadcast(&mail->posted);
    tell_ended(mail);
    pthread_mutex_unlock(&mail->mutex);
}

static int start_thread(struct mail *mail)
{
    if (mail->has_thread) {
        return 0;
    }
    group_hold(mail->group);
    int rc = thread_start(&mail->thread, "solo-mail", carry, mail);
    if (rc < 0) {
        group_release(mail->group);
        return rc;
    }
    mail->has_thread = true;
    return 0;
}

static int post_message(struct solo_group *group, const struct post *model, uint32_t timeout_ms)
{
    TRY(group_usable(group));
    if (model->peer != SOLO_ANY_SOURCE || !model->receive) {
        if (model->peer >= group->world || model->peer == group->rank) {
            return err_set(SOLO_EINVAL, "rank %u cannot exchange messages with rank %u of %u",
                           group->rank, model->peer, group->world);
        }
    }
    struct post *post = malloc(sizeof *post);
    if (!post) {
        return err_set(SOLO_ENOMEM, "no memory for a message");
    }
    *post = *model;
    post->begun_us = clock_us();
    post->deadline_us = group_deadline(group, timeout_ms);
    struct mail *mail = group->mail;
    pthread_mutex_lock(&mail->mutex);
    int rc = mail->closing ? err_set(SOLO_ECLOSED, "the group is closed") : start_thread(mail);
    if (rc < 0) {
        pthread_mutex_unlock(&mail->mutex);
        free(post);
        return rc;
    }
    post->id = ++mail->next_id;
    append(post->receive ? &mail->receives : &mail->sends, post);
    progress(mail);
    pthread_cond_signal(&mail->posted);
    tell_ended(mail);
    pthread_mutex_unlock(&mail->mutex);
    return 0;
}

int solo_group_send(struct solo_group *group, uint32_t to, uint64_t tag, const void *bytes,
                    uint64_t size, uint32_t timeout_ms, solo_done_fn done, void *context)
{
    struct post post = {.peer = to, .tag = tag, .size = size, .done = done, .context = context};
    memcpy(&post.bytes, &bytes, sizeof bytes); /* never written through */
    return post_message(group, &post, timeout_ms);
}

int solo_group_receive(struct solo_group *group, uint32_t from, uint64_t tag, void *bytes,
                       uint64_t size, uint32_t timeout_ms, solo_done_fn done, void *context)
{
    struct post post = {.receive = true,
                        .peer = from,
                        .tag = tag,
                        .bytes = bytes,
                        .size = size,
                        .done = done,
                        .context = context};
    return post_message(group, &post, timeout_ms);
}
