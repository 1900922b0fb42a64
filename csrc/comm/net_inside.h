/* net_inside.h - what net.c (turns, links) and net_fault.c (last words) share. */
#ifndef SOLO_COMM_NET_INSIDE_H
#define SOLO_COMM_NET_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/crowd.h"
#include "comm/net.h"

/* One lane to one rank. */
struct end {
    struct net *net;
    uint32_t rank;
    enum net_lane lane;
    struct link *link;
    uint32_t borrowed; /* frames whose payload the link still reads */
    int rc;            /* why it was lost; 0: it was not */
    char text[160];
};

struct peer {
    struct end ends[NET_LANES];
    struct solo_url url;
    char host[CARD_HOST_MAX];
    bool left; /* it said goodbye */
};

struct net {
    uint32_t rank, world;
    const char *token, *name;
    struct loop *loop;
    struct door *door;
    struct peer *peers;
    struct {
        const struct net_calls *calls;
        void *context;
    } lanes[NET_LANES];

    /* Who may be inside: tickets, in the order they were drawn. */
    pthread_mutex_t mutex;
    pthread_cond_t left;
    uint64_t next_ticket, serving;

    uint32_t events; /* frames since net_poll began */
    uint32_t polls;
    struct crowd crowd;

    _Atomic bool expects_word;
    bool failing; /* a fault was told: what arrives is read and forgotten */
    int told_rc;
    uint32_t told_by;
    char told_text[SOLO_TEXT_MAX], own_text[SOLO_TEXT_MAX];
};

#define TAG_OWN UINT64_MAX /* of what is sent for the net itself */

#endif
