/* mail_inside.h - what the files of mail share: mail.c (calls and the thread), mail_match.c (who
 * gets what), mail_fault.c (what ends a message early), mail_tube.c and mail_net.c (the two ways a
 * message travels).
 *
 * Everything is guarded by mail->mutex; what travels between hosts also needs the net to be
 * entered, which comes first. */
#ifndef SOLO_COMM_MAIL_INSIDE_H
#define SOLO_COMM_MAIL_INSIDE_H

#include "comm/mail.h"

enum mail_kind {
    MAIL_WHOLE = 1, /* a short message: tag, payload */
    MAIL_OFFER,     /* a long one: tag, id, size */
    MAIL_WANT,      /* send the message of this id */
    MAIL_REFUSE,    /* of this id: `size` is what the receiver has room for */
    MAIL_PIECE,     /* bytes of this id, at `offset` */
};

/* What travels, by either way. */
struct mail_item {
    enum mail_kind kind;
    uint32_t bytes; /* of payload */
    uint64_t tag, id, size, offset;
};

/* One posted send or receive. */
struct post {
    struct post *next;
    bool receive;
    uint32_t peer; /* rank in the group, or SOLO_ANY_SOURCE */
    uint64_t tag, id, size, begun_us, deadline_us;
    uint64_t moved;    /* bytes received, or handed on */
    uint32_t borrowed; /* frames that a link holds of `bytes` */
    uint8_t *bytes;
    enum {
        POST_FRESH,
        POST_CLAIMED, /* a receive: of an offer that could not be answered yet */
        POST_OFFERED,
        POST_MOVING,
        POST_ENDED
    } state;
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
    bool asleep;       /* the thread: has to be called */
    uint64_t dozed_id; /* next_id when the thread last lay down for a moment */
    uint32_t doze_us;  /* how long */
    bool helped;       /* a waiting caller does the thread's work */
    uint32_t carriers; /* who is in it now: the thread, who helps */
};

/* mail.c */
void mail_end_send(struct mail *mail, struct post **at, int rc, const char *text);
/* Calls the thread if nobody else moves what there is to move. */
void mail_call_thread(struct mail *mail);
void mail_end_receive(struct mail *mail, struct post **at, int rc, const char *text);

/* mail_fault.c: 0, or why it cannot come any more, as this thread's text. */
int mail_fault(struct mail *mail, const struct post *post, uint64_t now_us);

/* mail_match.c: what arrived. `take(context, to)` moves its payload (to NULL: nowhere); false:
 * nothing was taken, the item has to wait. */
struct mail_arrival {
    struct mail_item item;
    uint32_t from;
    void (*take)(void *context, const struct mail_item *item, void *to);
    void *context;
};
bool mail_arrived(struct mail *mail, const struct mail_arrival *arrival);
bool mail_open_letters(struct mail *mail); /* true: something moved */
/* The receive that a piece is for, or NULL. */
struct post *mail_receiver(struct mail *mail, uint32_t from, const struct mail_item *item);
/* Sends that may be begun: the first of each rank, for order. */
bool mail_may_begin(const struct mail *mail, const struct post *post);

/* Without payload, at once; false: no room now. */
bool mail_reply(struct mail *mail, uint32_t to, const struct mail_item *item);

/* mail_tube.c */
bool tube_mail_reply(struct mail *mail, uint32_t to, const struct mail_item *item);
bool tube_mail_receive(struct mail *mail);
bool tube_mail_send(struct mail *mail, struct post *post);
bool tube_mail_pending(struct mail *mail, uint32_t rank); /* something of it is not read yet */
void tube_mail_ring(struct mail *mail);                   /* wakes our own thread */

/* mail_net.c; the net is entered. */
void net_mail_serve(struct mail *mail);
bool net_mail_reply(struct mail *mail, uint32_t to, const struct mail_item *item);
bool net_mail_send(struct mail *mail, struct post *post);
int net_mail_reach(struct mail *mail, const struct post *post); /* makes the link it needs */
/* Before a post ends early: nothing is read from or written to its memory any more. */
void net_mail_give_up(struct mail *mail, const struct post *post);

#endif
