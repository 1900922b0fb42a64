/* clang-format off */
/* member.h - one node's side of the job: joins, catches up, merges, survives a lost master,
 * leaves. Pure: an event with its time in, actions out. tests/sim runs hundreds of them.
 *
 * ## How to drive it
 *
 *     member_init(&member, &config);
 *     member_step(&member, &(struct member_event){.type = MEMBER_START, .now_us = now}, &out);
 *     then for ever: do out.actions in order, arm one timer for out.wake_us (TICK), feed what
 *     happens.
 *
 * member_step is never called from inside an action: what an action finishes at once is posted
 * as a later event. One thread. Times are microseconds of one clock that never goes back.
 * out and all it points to is borrowed until the next step. `peer` indexes member.peers.
 *
 * ## Events to feed
 * START        once, after init: connects to the master.
 * ATTACH       once: the model (event.attach). Its memory, of member_memory_bytes(), is
 *              borrowed for good.
 * SUBMIT       the script is at its boundary (event.submit). One at a time: until COMPLETE.
 *              Not before JOINED.
 * LEAVE        goodbye (ok: finished; text): sends LEAVE, ends all waits with SOLO_ECLOSED, OVER.
 *              A merge that is being applied is completed first, as after FRAME_END.
 * MASTER_UP    the control connection stands, its hello is over.
 * MASTER_DOWN  it could not be made or is lost (rc, text). SOLO_EAUTH, SOLO_EVERSION and
 *              SOLO_EREFUSED before this node ever joined end the member: nothing would change.
 * MESSAGE      a control message (msg; the table of MEMBERS is borrowed during the step).
 * LINK_UP      the data link to `peer` is usable, made by us (CONNECT) or accepted. For an
 *              accepted one member_peer_of(rank, instance) gives the peer; < 0: close it, its
 *              maker tries again. A second link of the same peer: first LINK_DOWN for the old.
 * LINK_DOWN    it is lost, or CONNECT failed. Nothing about the old link may be fed after it, and
 *              nothing after ACTION_CLOSE (no LINK_DOWN either).
 * RECEIVED     a DELTA, MEAN, STATE, FETCH or NO_STATE frame is whole (peer, frame; ok false: its
 *              payload failed the CRC). For DELTA, MEAN and STATE ask member_take() when the
 *              header is there; FETCH and NO_STATE are fed as they come.
 * SENT         a SEND_DELTA, SEND_MEAN or SERVE is over: its bytes are with the kernel (peer,
 *              frame as it was sent). Not after LINK_DOWN, CLOSE, DROP_ROUND, DROP_SERVES of it.
 * ENCODED      an ENCODE is over (id, chunk; ok false: a value was NaN or Inf, text names the
 *              tensor).
 * REDUCED      a REDUCE is over (id, chunk): the mean's bytes are in their place.
 * APPLIED      an APPLY is over (id; digest: of the whole new anchor and momentum).
 * ADOPTED      an ADOPT is over (digest likewise).
 * TICK         time has passed.
 * ENCODED, REDUCED, APPLIED and ADOPTED may come from another thread's work at any later time,
 * also when the round is over: they carry its id and are then ignored. With RECEIVED and REDUCED
 * of a round set mean_digest (sum of the hashes of all mean chunks so far), delta_digest (of my
 * encoded delta so far; 0 if it is all zeros), sent_bytes and received_bytes: DONE takes them.
 *
 * ## Actions to do
 * CONNECT_MASTER  MASTER_UP or MASTER_DOWN follows within a deadline of the driver's.
 * CLOSE_MASTER    after what was sent before it. No MASTER_DOWN follows.
 * SEND_MASTER     out.msgs[index], in order; control has its own connection and never waits
 *                 behind data.
 * CONNECT         to peers[peer].address, the LINK frame first. LINK_UP or LINK_DOWN follows.
 * CLOSE           forget all that waits to be sent to that peer. Also for a CONNECT under way.
 * ROUND           a new attempt: member.round has its version, plan, weights, lr_sum, steps.
 *                 flag: the member list has changed since the last commit: residuals count as 0.
 * ENCODE          that chunk of v = anchor - local + residual: for another owner into one of
 *                 ROUND_ENCODED_MAX buffers, for an own chunk to where REDUCE finds it.
 * SEND_DELTA      the encoded chunk; its buffer is free at SENT.
 * REDUCE          decode this chunk's parked contributions, sum them in slot order with
 *                 round.weights, divide by round.weight_sum (0: the mean is zero), encode once
 *                 into the mean's place, hash it like a received one; its park buffers are free.
 * SEND_MEAN       the mean's bytes as they lie in their place.
 * APPLY           the outer step with all means. Only here anchor, momentum, residuals change.
 * DROP_ROUND      this attempt is over without effect: anchor, momentum, residuals and the
 *                 script's values stay. Nothing of it may be written any more: receives in
 *                 progress are diverted (frame_reader_divert), queued sends forgotten, a frame
 *                 half sent is finished from a copy (or its link is lost: LINK_DOWN).
 * FETCH           send FETCH for (kind, chunk of plan_init_state, version). STATE goes to a
 *                 staging place: the held anchor stays whole until ADOPT, another may need it.
 *                 A FETCH of another version than the one before: STATE in progress is diverted.
 * SERVE           send that chunk of the held anchor or momentum as STATE; SENT when over.
 * NO_STATE        answer that it is not held.
 * DROP_SERVES     the held state is about to change: as DROP_ROUND, for STATE sends.
 * ADOPT           flag 0: what was fetched is now anchor and momentum. flag 1: what a state_dir
 *                 gave (attach.held), else the script's own values with momentum zero.
 *                 Residuals are zero. Hash all, then ADOPTED.
 * RECHECK         ask member_take() again for every frame that was TAKE_LATER.
 * JOINED          attach is over: out.result. `replaced`: the script's values become the anchor's.
 * COMPLETE        the merge is over: out.result. rc 0: SOLO_MERGED, SOLO_ALONE or SOLO_REJOINED;
 *                 in all three the script's values become the anchor's. rc < 0: they stay.
 * DUE             flag: what solo_due() says.
 * OVER            the member is finished: rc 0 the job is over or it left, else why. Only closing
 *                 follows.
 * EVENT           out.events[index]. */
/* clang-format on */
#ifndef SOLO_PROTOCOL_MEMBER_H
#define SOLO_PROTOCOL_MEMBER_H

#include "base/rng.h"
#include "protocol/catchup.h"
#include "protocol/round.h"

#define MEMBER_BACKOFF_MIN_US  20000u /* first wait before connecting again; doubles, jittered */
#define MEMBER_BACKOFF_MAX_US  1000000u
#define MEMBER_BEATS_PER_LEASE 4u /* heartbeats in one lease */

enum member_state {
    MEMBER_OFF,         /* before START */
    MEMBER_OUTSIDE,     /* not joined yet: no model, or the master has not let it in */
    MEMBER_CATCHING_UP, /* fetches an anchor, or hashes it */
    MEMBER_TRAINING,    /* joined, the script runs (or waits to hear that it fell out) */
    MEMBER_READY,       /* a merge waits for BEGIN */
    MEMBER_IN_ROUND,    /* round.phase says where */
    MEMBER_ENDED,       /* OVER was given */
};

enum control_state {                  /* of the connection to the master */
                     CONTROL_WAITING, /* until control_retry_us */
                     CONTROL_CONNECTING,
                     CONTROL_UP,       /* hello over, JOIN not sent yet */
                     CONTROL_JOINED,   /* JOIN sent */
                     CONTROL_ADMITTED, /* ADMIT came */
};

enum link_state { LINK_NONE, LINK_WAITING, LINK_CONNECTING, LINK_IS_UP };

struct peer {
    bool used;
    uint32_t node_rank;
    uint64_t instance;
    char name[MSG_TEXT_MAX], address[MSG_TEXT_MAX];
    uint32_t round_slot; /* in the round in progress; UINT32_MAX: not in it */
    enum link_state link;
    bool wanted;       /* ours to make: the lower node rank connects */
    uint32_t failures; /* since it was last up */
    uint64_t retry_us;
    uint32_t serves; /* STATE sends in flight */
};

struct member_config {
    char job_id[MSG_TEXT_MAX];
    struct msg_identity identity;
    uint64_t seed;       /* of the jitter */
    uint64_t timeout_us; /* one deadline for waits on others: attach, merge, lost master */
    uint64_t lease_us;   /* until ADMIT says the master's */
    uint32_t min_rate;   /* bytes/s assumed for deadlines; 0: PLAN_RATE_FLOOR */
};

struct member_attach {
    struct plan_model model;
    struct msg_settings settings;
    bool momentum;        /* the outer step keeps one */
    struct msg_held held; /* from a state_dir; its digest is checked by ADOPT */
    void *memory;         /* member_memory_bytes(&model), 8-byte aligned, borrowed for good */
};

enum member_event_type {
    MEMBER_START,
    MEMBER_ATTACH,
    MEMBER_SUBMIT,
    MEMBER_LEAVE,
    MEMBER_MASTER_UP,
    MEMBER_MASTER_DOWN,
    MEMBER_MESSAGE,
    MEMBER_LINK_UP,
    MEMBER_LINK_DOWN,
    MEMBER_RECEIVED,
    MEMBER_SENT,
    MEMBER_ENCODED,
    MEMBER_REDUCED,
    MEMBER_APPLIED,
    MEMBER_ADOPTED,
    MEMBER_TICK,
};

struct member_event {
    enum member_event_type type;
    uint64_t now_us;
    uint32_t peer;
    bool ok; /* RECEIVED, ENCODED; LEAVE: finished */
    int rc;
    const char *text;   /* may be NULL */
    struct round_id id; /* ENCODED, REDUCED, APPLIED */
    uint32_t chunk;
    uint64_t digest;                                                /* APPLIED, ADOPTED */
    uint64_t mean_digest, delta_digest, sent_bytes, received_bytes; /* RECEIVED, REDUCED */
    const struct frame *frame;                                      /* RECEIVED, SENT */
    const struct msg *msg;                                          /* MESSAGE */
    const struct member_attach *attach;
    struct {
        uint64_t samples, steps;
        double lr_sum;
        bool final;
    } submit;
};

struct member {
    struct member_config config;
    enum member_state state;
    struct rng rng;
    uint64_t now_us;
    char text[MSG_REASON_MAX]; /* why the latest result has rc < 0 */
    bool over_due;             /* OVER waits for the end of an outer step that has begun */
    int over_rc;
    char over_text[MSG_REASON_MAX];

    bool attached, joined, founder;
    struct member_attach attach;
    uint64_t attach_us;
    struct msg_held held;
    struct round_id committed;   /* the attempt that made held.version */
    struct epoch residual_epoch; /* list of the last committed round */

    enum control_state control;
    uint32_t control_failures;
    uint64_t control_retry_us, heard_us, beat_us;
    bool control_lost; /* it was admitted once and is not now: told once */
    uint64_t lost_us;
    uint64_t lease_us;
    uint32_t rtt_us;

    struct epoch epoch; /* of the list below */
    bool listed;        /* this node is in it, by the word of the connected master */
    uint32_t listed_count, slot;
    uint64_t job_step;
    uint32_t slot_peers[SOLO_MEMBERS_MAX]; /* slot -> peer; own: ROUND_SELF */
    uint32_t slot_ranks[SOLO_MEMBERS_MAX];
    uint32_t device_counts[SOLO_MEMBERS_MAX];
    struct peer peers[SOLO_MEMBERS_MAX];
    uint32_t peer_count; /* every used peer is below */
    uint64_t links_wake_us;

    bool submitted;  /* a merge is in flight */
    bool ready_sent; /* over this connection */
    bool rejoined;   /* the script's values come from an anchor that is gone: told at its merge */
    struct msg_ready ready;
    uint64_t submitted_us, apply_began_us, last_apply_us;
    uint32_t attempts;
    struct round round;
    struct catchup catchup;
    struct msg_catchup order; /* of the catch-up in progress */
    void *round_memory, *catchup_memory;
};

uint64_t member_memory_bytes(const struct plan_model *model);
void member_init(struct member *member, const struct member_config *config);

/* One event. 0; SOLO_EINVAL: an event that this state does not allow (a caller's fault: SUBMIT
 * twice, before JOINED, ATTACH twice ...), told in the text, nothing changed. What peers and the
 * master do wrong never is an error here: it becomes actions. */
int member_step(struct member *member, const struct member_event *event, struct out *out);

/* The peer with this rank and instance, for a link that was accepted; < 0: not known (yet). */
int member_peer_of(const struct member *member, uint32_t node_rank, uint64_t instance);

/* What to do with a DELTA, MEAN or STATE frame of which the header is here. */
enum round_take member_take(const struct member *member, uint32_t peer, const struct frame *frame);

/* Whom the member waits for, in words, "" for nobody; for solo_waiting_for. */
void member_waiting_for(const struct member *member, char *text, uint32_t size);

#endif
