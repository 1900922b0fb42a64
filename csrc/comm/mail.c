#include "comm/mail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "comm/mail_inside.h"
#include "os/clock.h"

/* ---- lists -------------------------------------------------------------------------------------- */

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

void mail_end_send(struct mail *mail, struct post **at, int rc, const char *text)
{
    end_post(mail, &mail->sends, at, rc, text);
}

void mail_end_receive(struct mail *mail, struct post **at, int rc, const char *text)
{
    end_post(mail, &mail->receives, at, rc, text);
}

/* ---- moving on ------------------------------------------------------------------------------------ */

static bool send_all(struct mail *mail)
{
    bool moved = false;
    for (struct post **at = &mail->sends.first; *at;) {
        struct post *post = *at;
        if (post->state != POST_FRESH || mail_may_begin(mail, post)) {
            moved |= mail->group->net ? net_mail_send(mail, post) : tube_mail_send(mail, post);
        }
        if (post->state == POST_ENDED) {
            mail_end_send(mail, at, 0, NULL);
        } else {
            at = &post->next;
        }
    }
    return moved;
}

/* With the mutex held, and the net entered if there is one. */
static bool progress(struct mail *mail)
{
    bool moved = false, any = false;
    do {
        moved = mail_open_letters(mail);
        moved |= mail->group->net ? false : tube_mail_receive(mail);
        moved |= send_all(mail);
        any |= moved;
    } while (moved);
    return any;
}

static void end_faulty(struct mail *mail, struct posts *list, uint64_t now_us)
{
    for (struct post **at = &list->first; *at;) {
        int rc = mail_fault(mail, *at, now_us);
        if (rc == 0) {
            at = &(*at)->next;
            continue;
        }
        char text[SOLO_TEXT_MAX];
        snprintf(text, sizeof text, "%s", err_text());
        if (mail->group->net) {
            net_mail_give_up(mail, *at);
        }
        end_post(mail, list, at, rc, text);
    }
}

#define YIELD_US 50u  /* an answer is often near; see window_wait.c */
#define BRISK_US 200u /* the same between hosts; see net_poll */
#define NAP_US   300u
#define DOZE_US  2400u /* at most */

/* ---- the thread ----------------------------------------------------------------------------------- */

void mail_call_thread(struct mail *mail)
{
    if (mail->asleep && mail->carriers == 0) {
        pthread_cond_signal(&mail->posted);
    }
}

/* With the mutex held, which is given up while callbacks run. `carriers`: of the mail, that the
 * caller is. Another one may be asleep in a wait for what was just told. */
static void tell_ended(struct mail *mail, uint32_t carriers)
{
    bool any = mail->ended.first;
    while (mail->ended.first) {
        struct post *post = mail->ended.first;
        unlink_at(&mail->ended, &mail->ended.first);
        pthread_mutex_unlock(&mail->mutex);
        post->done(post->context, post->rc, post->text ? post->text : "", post->peer);
        free(post->text);
        free(post);
        pthread_mutex_lock(&mail->mutex);
    }
    if (any && mail->carriers > carriers) {
        if (mail->group->net) {
            net_wake(mail->group->net);
        } else {
            tube_mail_ring(mail);
        }
    }
}

static bool step(struct mail *mail, uint64_t now_us)
{
    bool moved = progress(mail);
    end_faulty(mail, &mail->sends, now_us);
    end_faulty(mail, &mail->receives, now_us);
    return moved || mail->ended.first;
}

/* Ends a wait for the bell, so that faults are looked for. */
static int enough(void *context, uint64_t now_us)
{
    return now_us >= *(uint64_t *)context ? SOLO_ETIMEDOUT : 0;
}

static void carry_on_board(struct mail *mail)
{
    const struct board *board = &mail->group->board;
    struct line *bell = &board_desk(board, board->rank)->bell;
    uint32_t rung = atomic_load(&bell->value);
    uint64_t now_us = clock_us();
    if (!step(mail, now_us)) {
        pthread_mutex_unlock(&mail->mutex);
        uint64_t until_us = now_us + LINE_CHECK_US;
        struct line_watch watch = {enough, &until_us, 0, YIELD_US};
        line_wait(bell, rung + 1, &watch);
        pthread_mutex_lock(&mail->mutex);
    }
}

static void carry_on_net(struct mail *mail, uint64_t brisk_until_us)
{
    struct net *net = mail->group->net;
    pthread_mutex_unlock(&mail->mutex);
    net_enter(net);
    pthread_mutex_lock(&mail->mutex);
    uint64_t now_us = clock_us();
    bool moved = step(mail, now_us);
    pthread_mutex_unlock(&mail->mutex);
    net_resume(net, NET_MAIL);
    if (!moved && now_us < brisk_until_us && net_may_poll(net, now_us)) {
        net_poll(net);
    } else {
        net_turn(net, moved ? 0 : now_us + LINE_CHECK_US);
    }
    net_leave(net);
    pthread_mutex_lock(&mail->mutex);
}

/* With the mutex held: one turn of moving what there is to move. */
static void carry(struct mail *mail, uint64_t brisk_until_us)
{
    mail->carriers++;
    if (mail->group->net) {
        carry_on_net(mail, brisk_until_us);
    } else {
        carry_on_board(mail);
    }
    tell_ended(mail, 1);
    mail->carriers--;
}

static bool nothing_left(const struct mail *mail)
{
    return !mail->sends.first && !mail->receives.first && !mail->ended.first;
}

static bool is_new(const struct post *post, uint64_t now_us)
{
    return !post || now_us - post->begun_us < NAP_US;
}

static bool all_new(const struct mail *mail, uint64_t now_us)
{
    return is_new(mail->sends.first, now_us) && is_new(mail->receives.first, now_us) &&
           !mail->ended.first;
}

static void nap(struct mail *mail, uint32_t nap_us)
{
    pthread_mutex_unlock(&mail->mutex);
    clock_sleep_until(clock_us() + nap_us);
    pthread_mutex_lock(&mail->mutex);
}

/* Nothing is the thread's to do. While messages come and others carry them it looks up by itself,
 * ever less often: to call it would cost each of them more than the message itself. */
static void doze(struct mail *mail)
{
    if (mail->next_id == mail->dozed_id) {
        mail->asleep = true;
        pthread_cond_wait(&mail->posted, &mail->mutex);
        mail->asleep = false;
        mail->doze_us = NAP_US;
    }
    mail->dozed_id = mail->next_id;
    nap(mail, mail->doze_us);
    mail->doze_us = mail->doze_us < DOZE_US ? 2 * mail->doze_us : DOZE_US;
}

/* Who posts a message mostly waits for it next, and then moves it himself: one thread woken less
 * each way. So the thread lets what is new lie for a moment. */
static void work(void *context)
{
    struct mail *mail = context;
    struct solo_group *group = mail->group;
    pthread_detach(pthread_self());
    pthread_mutex_lock(&mail->mutex);
    while (!mail->closing) {
        if (nothing_left(mail) || mail->helped) {
            doze(mail);
        } else if (all_new(mail, clock_us())) {
            nap(mail, NAP_US);
        } else {
            mail->doze_us = NAP_US;
            carry(mail, 0);
        }
    }
    pthread_mutex_unlock(&mail->mutex);
    group_release(group);
}

void solo_group_help(struct solo_group *group, int (*over)(void *context), void *context)
{
    struct mail *mail = group->mail;
    if (group_forked(group)) {
        return;
    }
    uint64_t brisk_until_us = clock_us() + BRISK_US;
    group_hold(group);
    pthread_mutex_lock(&mail->mutex);
    if (!mail->helped) {
        mail->helped = true;
        while (!over(context) && !mail->closing && !nothing_left(mail)) {
            carry(mail, brisk_until_us);
        }
        mail->helped = false;
        if (!nothing_left(mail)) {
            mail_call_thread(mail);
        }
    }
    pthread_mutex_unlock(&mail->mutex);
    group_release(group);
}

/* ---- the interface ------------------------------------------------------------------------------- */

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

void mail_list_pending(struct mail *mail, uint32_t most, struct text *out)
{
    uint32_t count = 0;
    pthread_mutex_lock(&mail->mutex);
    for (int sends = 0; sends < 2; sends++) {
        const struct post *post = sends ? mail->sends.first : mail->receives.first;
        for (; post && count < most; post = post->next) {
            text_add(out, count++ ? ", " : "; beside it ");
            text_add(out, post->receive ? "a receive from " : "a send to ");
            if (post->peer == SOLO_ANY_SOURCE) {
                text_add(out, "any rank");
            } else {
                text_add(out, "rank ");
                text_add_uint(out, post->peer);
            }
            text_add(out, " of ");
            text_add_uint(out, post->size);
            text_add(out, " bytes");
        }
    }
    pthread_mutex_unlock(&mail->mutex);
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
    struct net *net = mail->group->net;
    if (net && (!mail_idle(mail, false))) { /* links hold the callers' memory */
        net_enter(net);
        net_drop(net, NET_MAIL);
        net_leave(net);
    }
    pthread_mutex_lock(&mail->mutex);
    mail->closing = true;
    while (mail->sends.first) {
        end_post(mail, &mail->sends, &mail->sends.first, rc, text);
    }
    while (mail->receives.first) {
        end_post(mail, &mail->receives, &mail->receives.first, rc, text);
    }
    pthread_cond_broadcast(&mail->posted);
    tell_ended(mail, 0);
    pthread_mutex_unlock(&mail->mutex);
}

static int start_thread(struct mail *mail)
{
    if (mail->has_thread) {
        return 0;
    }
    group_hold(mail->group);
    int rc = thread_start(&mail->thread, "solo-mail", work, mail);
    if (rc < 0) {
        group_release(mail->group);
        return rc;
    }
    mail->has_thread = true;
    return 0;
}

/* With the mutex held: on the caller's thread, what needs no waiting. Between hosts that is so when
 * nobody else is in the net: a short message goes out without waking the group's thread. */
static void begin_at_once(struct mail *mail, bool receive)
{
    struct net *net = mail->group->net;
    if (!net) {
        progress(mail);
        return;
    }
    pthread_mutex_unlock(&mail->mutex);
    bool inside = net_try_enter(net);
    pthread_mutex_lock(&mail->mutex);
    if (!inside) {
        net_wake(net);
        return;
    }
    progress(mail);
    pthread_mutex_unlock(&mail->mutex);
    if (receive) {
        net_look(net); /* an error there is told by who carries */
    } else {
        net_flush(net);
    }
    pthread_mutex_lock(&mail->mutex);
    progress(mail); /* what has gone out has ended */
    net_leave(net);
}

static int post_message(struct solo_group *group, const struct post *model, uint32_t timeout_ms)
{
    TRY(group_usable(group));
    TRY(group_listen(group));
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
    begin_at_once(mail, model->receive);
    tell_ended(mail, 0);
    if (!nothing_left(mail)) {
        mail_call_thread(mail);
    }
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
