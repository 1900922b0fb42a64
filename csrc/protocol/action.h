/* action.h - what a member's machine wants done. It decides, the driver does: node/drive.c on
 * real sockets, tests/sim on a simulated network. What each one demands is in member.h. */
#ifndef SOLO_PROTOCOL_ACTION_H
#define SOLO_PROTOCOL_ACTION_H

#include "protocol/event.h"

enum state_kind { STATE_ANCHOR = 0, STATE_MOMENTUM = 1 };

enum action_type {
    ACTION_CONNECT_MASTER, /* - */
    ACTION_CLOSE_MASTER,   /* - */
    ACTION_SEND_MASTER,    /* msg */
    ACTION_CONNECT,        /* peer: address in member->peers[peer] */
    ACTION_CLOSE,          /* peer */
    ACTION_ROUND,          /* fresh_residual; the round is member->round */
    ACTION_ENCODE,         /* chunk */
    ACTION_SEND_DELTA,     /* peer, chunk */
    ACTION_REDUCE,         /* chunk */
    ACTION_SEND_MEAN,      /* peer, chunk */
    ACTION_APPLY,          /* - */
    ACTION_DROP_ROUND,     /* - */
    ACTION_FETCH,          /* peer, kind, chunk, version */
    ACTION_SERVE,          /* peer, kind, chunk, version */
    ACTION_NO_STATE,       /* peer, kind, chunk, version */
    ACTION_DROP_SERVES,    /* - */
    ACTION_ADOPT,          /* version; own: not fetched */
    ACTION_RECHECK,        /* - */
    ACTION_JOINED,         /* result */
    ACTION_COMPLETE,       /* result */
    ACTION_DUE,            /* due */
    ACTION_OVER,           /* rc */
    ACTION_EVENT,          /* event */
};

/* How an attach or a merge ended; the text is in member->text when rc < 0. */
struct member_result {
    int rc;
    enum solo_outcome outcome;
    uint64_t version, digest, job_step;
    uint64_t round;
    uint32_t slot, member_count, contributor_count, attempts;
    bool founder, replaced;
    uint64_t wait_us, exchange_us, apply_us;
};

struct action {
    enum action_type type;
    uint32_t peer; /* index into member->peers */
    uint32_t chunk;
    enum state_kind kind;
    uint64_t version;
    bool flag;      /* ROUND: fresh_residual; ADOPT: own; DUE: due */
    uint32_t index; /* into out->msgs, out->events or 0 */
    int rc;         /* OVER */
};

#define OUT_ACTIONS_MAX 2304u
#define OUT_MSGS_MAX    8u
#define OUT_EVENTS_MAX  64u

/* The answer to one event. Never overflows for a step of the machine; an event that does not
 * fit is dropped and counted, an action never is (MUST). */
struct out {
    uint32_t count, msg_count, event_count, events_dropped;
    struct action actions[OUT_ACTIONS_MAX];
    struct msg msgs[OUT_MSGS_MAX];
    struct event events[OUT_EVENTS_MAX]; /* the last one is overwritten when they are too many */
    struct member_result result;         /* of JOINED, COMPLETE or OVER; one a step */
    uint64_t wake_us; /* feed MEMBER_TICK then, or earlier; UINT64_MAX: not needed */
};

void out_clear(struct out *out);
struct action *out_add(struct out *out, enum action_type type);
struct action *out_add_peer(struct out *out, enum action_type type, uint32_t peer, uint32_t chunk);
struct msg *out_msg(struct out *out, enum frame_type type);     /* adds SEND_MASTER with it */
struct event *out_event(struct out *out, enum event_kind kind); /* never NULL; of nobody */
void out_wake(struct out *out, uint64_t at_us);                 /* no later than at_us */

#endif
