/* net.h - a group's ranks on other hosts: one port, and up to two links to each rank, made when
 * first used. The rank with the higher number dials.
 *
 * Threads: the loop runs on whichever thread has entered; threads take turns in the order they
 * came. Everything but net_enter, net_try_enter and net_wake is for the thread that is inside,
 * and the callbacks run on it. */
#ifndef SOLO_COMM_NET_H
#define SOLO_COMM_NET_H

#include <pthread.h>

#include "comm/card.h"
#include "os/door.h"
#include "os/link.h"

/* Collectives and messages have links of their own: neither holds up the other. */
enum net_lane { NET_COLLECTIVE, NET_MAIL, NET_LANES };

/* Bits of frame.flags; FRAME_UNCHECKED is the transport's. */
enum net_flags {
    NET_FAULT = 16,   /* the payload is the text of a fault; extra: its code */
    NET_GOODBYE = 32, /* the rank leaves in good order */
};

struct net;

/* What a lane's owner does with frames; as link_calls, by rank. */
struct net_calls {
    int (*place)(void *context, uint32_t from, const struct frame *frame, void **room_out);
    int (*frame)(void *context, uint32_t from, const struct frame *frame, const void *payload);
    void (*sent)(void *context, uint32_t to, uint64_t tag);
};

#define NET_SOCKETS_MAX 1024u /* of one group's collectives; one to each rank is always allowed */

/* How many streams a collective link may have: a long path to few ranks gets many. */
static inline uint32_t net_streams_max(uint32_t world)
{
    uint32_t each = NET_SOCKETS_MAX / (world > 1 ? world - 1 : 1);
    return each < 1 ? 1 : each > LINK_STREAMS_MAX ? LINK_STREAMS_MAX : each;
}

struct net_config {
    uint32_t rank, world;
    const struct card *cards; /* [world]; borrowed during net_open */
    int listen_fd;            /* taken, also on an error */
    const char *token, *name; /* borrowed while the net is open */
};

int net_open(const struct net_config *config, struct net **out); /* gives *out: net_close */
void net_close(struct net *net);                                 /* NULL is allowed */

void net_enter(struct net *net);
bool net_try_enter(struct net *net); /* false: another thread is inside, or waits */
void net_leave(struct net *net);
void net_wake(struct net *net); /* whoever sleeps inside looks up */

/* One turn of the loop, sleeping at most until the deadline; lets waiting threads in between. */
int net_turn(struct net *net, uint64_t deadline_us);

/* The same without sleeping: gives the core away if there is nothing. For who expects something any
 * moment: who sleeps is called for by the kernel, which takes longer than most answers. */
int net_poll(struct net *net);
bool net_may_poll(const struct net *net, uint64_t now_us); /* no: others want the cores */

void net_flush(struct net *net); /* sends what can be sent at once */
int net_look(struct net *net);   /* and receives what is there */

void net_serve(struct net *net, enum net_lane lane, const struct net_calls *calls, void *context);

/* Begins to make the link if it is this rank's part. SOLO_ECLOSED: the rank is gone. */
int net_reach(struct net *net, uint32_t rank, enum net_lane lane);
/* As link_send; SOLO_EAGAIN also while the link is not there yet. */
int net_send(struct net *net, uint32_t rank, enum net_lane lane, const struct frame *frame,
             const void *payload, size_t size, uint64_t tag);
void net_resume(struct net *net, enum net_lane lane); /* asks again what place put off */
/* Nothing that arrives is written to this memory any more. */
void net_divert(struct net *net, const void *base, size_t size);

/* Closes a lane at once: nobody's memory is borrowed any more. */
void net_drop(struct net *net, enum net_lane lane);
void net_cut(struct net *net, uint32_t rank, enum net_lane lane); /* to one rank */

/* Tells every rank that is linked that this one leaves in good order; waits a moment. */
void net_say_goodbye(struct net *net);
bool net_has_left(const struct net *net, uint32_t rank); /* and said so */

/* Tells every rank that is linked why this one gives up, waiting a moment for it to go out. */
void net_tell_fault(struct net *net, int rc, const char *text);
/* What another rank told so: 0 if nothing. The text is this thread's error text. */
int net_told_fault(const struct net *net);

/* An own finding about another rank, for whoever waits inside: as what was told, without a teller. */
void net_blame(struct net *net, int rc, const char *text);

/* This rank's last collective only sent: that it was refused is told after it. */
void net_expect_word(struct net *net, bool expected); /* any thread */
/* If so, reads what has come: as net_told_fault. Whoever else is inside would read it: then nothing. */
int net_listen(struct net *net); /* any thread that is not inside */

const char *net_host(const struct net *net, uint32_t rank); /* "name:pid", for messages */
uint32_t net_connections(struct net *net);

#endif
