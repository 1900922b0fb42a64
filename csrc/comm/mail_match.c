#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "comm/mail_inside.h"

bool mail_reply(struct mail *mail, uint32_t to, const struct mail_item *item)
{
    return mail->group->net ? net_mail_reply(mail, to, item) : tube_mail_reply(mail, to, item);
}

bool mail_may_begin(const struct mail *mail, const struct post *post)
{
    for (const struct post *at = mail->sends.first; at != post; at = at->next) {
        if (at->peer == post->peer && at->state == POST_FRESH) {
            return false;
        }
    }
    return true;
}

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
    mail_end_receive(mail, at, SOLO_EMISMATCH, text);
}

/* The receive that an offer is for. */
static struct post **match_offer(struct mail *mail, uint32_t from, uint64_t tag, uint64_t id)
{
    for (struct post **at = &mail->receives.first; *at; at = &(*at)->next) {
        if ((*at)->state == POST_CLAIMED && (*at)->peer == from && (*at)->id == id) {
            return at;
        }
    }
    return match(mail, from, tag);
}

/* Answers an offer. False: there is no room for the answer now, but the receive is taken: what
 * comes behind the offer must not get it. */
static bool answer(struct mail *mail, struct post **at, uint32_t from, uint64_t id, uint64_t size)
{
    struct post *post = *at;
    bool fits = post->size == size;
    struct mail_item item = {.kind = fits ? MAIL_WANT : MAIL_REFUSE, .id = id, .size = post->size};
    post->peer = from;
    post->id = id;
    post->state = POST_CLAIMED;
    if (!mail_reply(mail, from, &item)) {
        return false;
    }
    if (fits) {
        post->state = POST_MOVING;
    } else {
        end_unequal(mail, at, from, size);
    }
    return true;
}

static bool keep(struct mail *mail, const struct mail_arrival *arrival)
{
    const struct mail_item *item = &arrival->item;
    struct letter *letter =
        mail->kept + item->bytes <= MAIL_KEPT_MAX ? malloc(sizeof *letter + item->bytes) : NULL;
    if (!letter) {
        return false;
    }
    *letter = (struct letter){.peer = arrival->from,
                              .tag = item->tag,
                              .id = item->id,
                              .size = item->size,
                              .offer = item->kind == MAIL_OFFER};
    arrival->take(arrival->context, item, letter->bytes);
    mail->kept += item->bytes;
    *mail->letters_end = letter;
    mail->letters_end = &letter->next;
    return true;
}

static bool whole_arrived(struct mail *mail, const struct mail_arrival *arrival)
{
    struct post **at = match(mail, arrival->from, arrival->item.tag);
    if (!at) {
        return keep(mail, arrival);
    }
    bool fits = (*at)->size == arrival->item.size;
    arrival->take(arrival->context, &arrival->item, fits ? (*at)->bytes : NULL);
    (*at)->peer = arrival->from;
    if (fits) {
        (*at)->moved = (*at)->size;
        mail_end_receive(mail, at, 0, NULL);
    } else {
        end_unequal(mail, at, arrival->from, arrival->item.size);
    }
    return true;
}

static bool offer_arrived(struct mail *mail, const struct mail_arrival *arrival)
{
    const struct mail_item *item = &arrival->item;
    struct post **at = match_offer(mail, arrival->from, item->tag, item->id);
    if (!at || !answer(mail, at, arrival->from, item->id, item->size)) {
        return keep(mail, arrival);
    }
    arrival->take(arrival->context, item, NULL);
    return true;
}

static struct post **receiver(struct mail *mail, uint32_t from, const struct mail_item *item)
{
    for (struct post **at = &mail->receives.first; *at; at = &(*at)->next) {
        const struct post *post = *at;
        if (post->state == POST_MOVING && post->peer == from && post->id == item->id &&
            item->offset <= post->size && item->bytes <= post->size - item->offset) {
            return at;
        }
    }
    return NULL;
}

struct post *mail_receiver(struct mail *mail, uint32_t from, const struct mail_item *item)
{
    struct post **at = receiver(mail, from, item);
    return at ? *at : NULL;
}

static void piece_arrived(struct mail *mail, const struct mail_arrival *arrival)
{
    struct post **at = receiver(mail, arrival->from, &arrival->item);
    /* None: of a receive that was given up. */
    arrival->take(arrival->context, &arrival->item,
                  at ? (*at)->bytes + arrival->item.offset : NULL);
    if (at) {
        (*at)->moved += arrival->item.bytes;
        if ((*at)->moved == (*at)->size) {
            mail_end_receive(mail, at, 0, NULL);
        }
    }
}

static void reply_arrived(struct mail *mail, const struct mail_arrival *arrival)
{
    const struct mail_item *item = &arrival->item;
    arrival->take(arrival->context, item, NULL);
    for (struct post **at = &mail->sends.first; *at; at = &(*at)->next) {
        struct post *post = *at;
        if (post->state != POST_OFFERED || post->peer != arrival->from || post->id != item->id) {
            continue;
        }
        if (item->kind == MAIL_WANT) {
            post->state = POST_MOVING;
            return;
        }
        char text[160];
        snprintf(text, sizeof text,
                 "message with tag %" PRId64 " to rank %u has %" PRIu64
                 " bytes, the receive there expects %" PRIu64,
                 (int64_t)post->tag, arrival->from, post->size, item->size);
        mail_end_send(mail, at, SOLO_EMISMATCH, text);
        return;
    }
}

bool mail_arrived(struct mail *mail, const struct mail_arrival *arrival)
{
    switch (arrival->item.kind) {
    case MAIL_WHOLE:
        return whole_arrived(mail, arrival);
    case MAIL_OFFER:
        return offer_arrived(mail, arrival);
    case MAIL_PIECE:
        piece_arrived(mail, arrival);
        return true;
    case MAIL_WANT:
    case MAIL_REFUSE:
        reply_arrived(mail, arrival);
        return true;
    }
    arrival->take(arrival->context, &arrival->item, NULL);
    return true;
}

/* A letter for a receive that was posted after it came. False: not yet. */
static bool open_letter(struct mail *mail, struct letter *letter)
{
    if (letter->offer) {
        struct post **at = match_offer(mail, letter->peer, letter->tag, letter->id);
        return at && answer(mail, at, letter->peer, letter->id, letter->size);
    }
    struct post **at = match(mail, letter->peer, letter->tag);
    if (!at) {
        return false;
    }
    mail->kept -= letter->size;
    (*at)->peer = letter->peer;
    if ((*at)->size != letter->size) {
        end_unequal(mail, at, letter->peer, letter->size);
        return true;
    }
    if (letter->size) {
        memcpy((*at)->bytes, letter->bytes, letter->size);
    }
    (*at)->moved = letter->size;
    mail_end_receive(mail, at, 0, NULL);
    return true;
}

bool mail_open_letters(struct mail *mail)
{
    bool moved = false;
    for (struct letter **at = &mail->letters; *at;) {
        struct letter *letter = *at;
        if (!open_letter(mail, letter)) {
            at = &letter->next;
            continue;
        }
        *at = letter->next;
        mail->letters_end = mail->letters_end == &letter->next ? at : mail->letters_end;
        free(letter);
        moved = true;
    }
    return moved;
}
