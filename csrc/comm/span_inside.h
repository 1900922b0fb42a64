/* span_inside.h - what the files of span share: span.c (pieces, sending, waiting), span_pair.c
 * (several collectives at once) and span_frames.c (what a frame says, and whether it is right). */
#ifndef SOLO_COMM_SPAN_INSIDE_H
#define SOLO_COMM_SPAN_INSIDE_H

#include "comm/schedule.h"
#include "comm/span.h"

/* One transfer that is awaited, by (stage, sender). */
struct slot {
    uint8_t *at;
    uint64_t bytes, got;
    bool awaited;
};

/* One transfer to be sent. */
struct parcel {
    const uint8_t *at;
    uint64_t bytes, sent;
    uint32_t piece, stage;
    bool begun;
};

/* A piece under way. */
struct bead {
    uint32_t stage;
    uint32_t awaited[SCHEDULE_STAGES]; /* transfers not received whole */
    uint32_t unsent;                   /* frames handed to links or to be handed */
    bool merged;
};

/* What is queued for one rank: a ring of parcels. */
struct outgoing {
    uint32_t first, count;
    uint64_t ahead; /* bytes handed over and not sent */
};

struct span {
    struct net *net;
    uint32_t most; /* ranks of the net */

    /* of the collective under way */
    const uint32_t *members; /* their ranks in the group, in the order of the schedule */
    uint32_t divisor;        /* of averages */
    bool partial;            /* the input is sums already */
    uint32_t rank, world;    /* this rank's place among them, and how many they are */
    const struct solo_op *op;
    struct schedule schedule;
    struct op_header header;
    uint32_t number;             /* its place in the ring */
    uint32_t depth, base, begun; /* pieces: [base, begun) are under way */
    uint32_t parcels_left;       /* queued, all ranks */
    uint32_t frames_left;        /* handed to links, all ranks */
    bool doubt; /* another rank wants another length: it will see it and say so, wait for it */
    int rc;
    char text[SOLO_TEXT_MAX];
    uint8_t nowhere[8]; /* what transfers without bytes bring */

    /* memory, grown as needed */
    struct bead *beads;
    struct slot *slots;     /* [depth][stages][world] */
    struct parcel *parcels; /* [world][depth * stages] */
    struct outgoing *outgoing;
    struct move *moves;
    const void **sources;
    uint8_t *scratch;
    uint32_t beads_held, rows_held; /* depth; depth * stages */
    _Atomic uint64_t scratch_held;  /* read by whoever asks for figures */
};

/* The collective under way and those behind it, by the last bits of their sequence. */
#define SPAN_RING 4u

/* What this rank called before: who only sends may be so far ahead of who finds that it does another
 * thing. */
#define SPAN_PAST 64u

struct span_pair {
    struct span at[SPAN_RING];
    struct net *net;
    uint32_t rank;   /* this one's, in the group */
    uint64_t latest; /* sequence that was begun last */
    uint64_t passed; /* up to here, without it, all are done */
    struct op_header past[SPAN_PAST];
};

static inline struct span *span_at(struct span_pair *pair, uint64_t sequence)
{
    return &pair->at[sequence % SPAN_RING];
}

/* Of what is sent: which of the ring, above the piece, below the bytes. */
#define SPAN_TAG_PLACE 30u
#define SPAN_TAG_PIECE ((1u << SPAN_TAG_PLACE) - 1)

#define NET_EMPTY 64u /* flag: the transfer has no bytes; one is sent that says so */

/* The place among the members of a rank of the group. */
static inline bool place_of(const struct span *x, uint32_t member, uint32_t *out)
{
    for (uint32_t i = 0; i < x->world; i++) {
        if (x->members[i] == member) {
            *out = i;
            return true;
        }
    }
    return false;
}

static inline struct slot *slot_of(const struct span *x, uint32_t piece, uint32_t stage,
                                   uint32_t from)
{
    return &x->slots[((piece % x->depth) * x->schedule.stages + stage) * x->world + from];
}

/* Number `index` of the ring of parcels for a rank. */
static inline struct parcel *parcel_of(const struct span *x, uint32_t to, uint32_t index)
{
    uint32_t each = x->depth * x->schedule.stages;
    return &x->parcels[to * each + index % each];
}

/* span.c */
int span_init(struct span *x, struct net *net, uint32_t world);
void span_deinit(struct span *x);
int span_begin(struct span *x, const struct span_call *call); /* sets `op`: it is under way */
/* Until it is done; begins those behind it when it may. */
int span_go_on(struct span_pair *pair, struct span *x, const struct span_call *call);
int span_take(struct span *x, uint32_t from, const struct frame *frame);
void span_sent(struct span *x, uint32_t to, uint64_t tag);
void span_let_go(struct span *x); /* after an error: nothing is written to its memory any more */

/* span_frames.c */
struct frame span_frame(const struct span *x, uint32_t to, uint32_t piece, uint32_t stage,
                        uint64_t transfer_bytes, uint64_t offset);
int span_place(struct span *x, uint32_t from, const struct frame *frame, void **room_out);
/* It is of a collective that is done: this rank awaited nothing of it, and the other does not the same. */
void span_blame(const struct span_pair *pair, uint32_t from, const struct frame *frame);

#endif
