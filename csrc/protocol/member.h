/* member.h - one node's side of the job: joins, catches up, merges, survives a lost master,
 * leaves. Pure: an event with its time in, actions out. tests/sim runs hundreds of them.
 *
 * ## How to drive it
 *
 *     member_init(&member, &config);
 *     event.type = MEMBER_START; loop: member_step(&member, &event, &out); do out.actions in
 *     order; arm one timer for out.wake_us and feed MEMBER_TICK then.
 *
 * Do not call member_step from inside an action: post what an action finishes at once as a later
 * event. One thread. Times are microseconds of one clock that never goes back. Borrowed until
 * the next step: out and all it points to. `peer` is an index into member.peers.
 *
 * ## Events to feed
 * START        once, after init: connects to the master.
 * ATTACH       once: the model (event.attach: plan_model, layout, settings, what a state_dir
 *              holds). Memory of member_memory_bytes() is borrowed for good.
 * SUBMIT       the script is at its boundary (samples, steps, lr_sum, final). One at a time:
 *              until COMPLETE. May come before JOINED never.
 * LEAVE        goodbye (finished, text): sends LEAVE, ends with OVER. Frees all it waited for.
 * MASTER_UP    the control connection is made and its hello is over.
 * MASTER_DOWN  it could not be made or is lost, for whatever reason (rc, text). rc SOLO_EAUTH,
 *              SOLO_EVERSION and SOLO_EREFUSED end the member: trying again cannot help.
 * MESSAGE      a control message (msg; for MEMBERS msg.table is borrowed during the step).
 * LINK_UP      the data link to `peer` is usable, made by us (CONNECT) or accepted: for an
 *              accepted one member_peer_of(rank, instance) gives the peer; < 0: close it, its
 *              maker tries again. A second link of the same peer: feed LINK_DOWN first.
 * LINK_DOWN    it is lost or could not be made. No event about the old link may follow it, and
 *              none is fed after ACTION_CLOSE.
 * RECEIVED     a DELTA, MEAN, STATE, FETCH or NO_STATE frame is whole (frame; ok false: its
 *              payload failed the CRC). For DELTA, MEAN, STATE ask member_take() when the header
 *              is there; FETCH and NO_STATE are fed as they come.
 * SENT         a SEND_DELTA, SEND_MEAN or SERVE is over: its bytes are with the kernel (peer,
 *              frame type, id or version, chunk). Not after LINK_DOWN, DROP_ROUND, DROP_SERVES.
 * ENCODED      an ENCODE is over (id, chunk). ok false: a value was NaN or Inf, text names the
 * tensor. REDUCED      a REDUCE is over (id, chunk): the mean's bytes are in their place. APPLIED
 * an APPLY is over (digest: of the whole new anchor and momentum). ADOPTED      an ADOPT is over
 * (digest likewise; version, job_step if own). TICK         time has passed. ENCODED, REDUCED,
 * APPLIED, ADOPTED may come from another thread's work, any time later, also when the round is
 * over: they carry its id and are then ignored.
 *
 * ## Actions to do
 * CONNECT_MASTER / CLOSE_MASTER  with the hello; MASTER_UP or MASTER_DOWN follows CONNECT_MASTER
 *              within a deadline of the driver's. None follows CLOSE_MASTER.
 * SEND_MASTER  out.msgs[index], in order. Never blocks: control has its own connection.
 * CONNECT      to peers[peer].address, the LINK frame first. LINK_UP or LINK_DOWN follows.
 * CLOSE        forget all that waits to be sent to it.
 * ROUND        a new attempt: member.round says version, plan, slots, weights, lr_sum. flag: the
 *              member list has changed since the last committed round: residuals count as zero.
 * ENCODE       chunk of v = anchor - local + residual, for a remote owner into one of
 *              ROUND_ENCODED_MAX buffers, for an own chunk to where REDUCE finds it.
 * SEND_DELTA   the encoded chunk; its buffer is free at SENT.
 * REDUCE       decode all parked contributions of this chunk, sum in slot order with
 *              round.weights, divide by round.weight_sum (0: the mean is zero), encode once into
 *              the mean's place; park buffers are free. Hash it as a received mean is.
 * SEND_MEAN    the mean's bytes as they lie in their place.
 * APPLY        the outer step with all means. Only now the anchor, momentum and residuals
 *              change. The round's memory is free when APPLIED was fed.
 * DROP_ROUND   this attempt is over without effect: anchor, momentum, residual, local values stay.
 *              Nothing of it may be written any more: receives in progress are diverted
 *              (frame_reader_divert), queued sends forgotten, a frame half sent is finished from a
 *              copy. Deltas are encoded again in the next attempt from the same values.
 * FETCH        ask peer for (kind, chunk of the state plan, version). STATE frames go to a staging
 *              place: the held anchor stays whole until ADOPT (another member may need it).
 * SERVE        send that chunk of the held anchor or momentum as STATE; SENT when over.
 * NO_STATE     answer that it is not held.
 * DROP_SERVES  the held state is about to change: as DROP_ROUND, for STATE sends.
 * ADOPT        flag false: what was fetched is now the anchor and momentum; flag true: keep what
 *              a state_dir gave, else the script's own values are the anchor, momentum zero.
 *              Residuals are zero. Hash all, then ADOPTED.
 * RECHECK      ask member_take() again for every frame that was TAKE_LATER.
 * JOINED       attach is over: out.result. replaced: give the script the anchor's values.
 * COMPLETE     the merge is over: out.result. rc 0: SOLO_MERGED, SOLO_ALONE or SOLO_REJOINED, in
 *              all three the script's values become the anchor. rc < 0: they stay (text).
 * DUE          flag: what solo_due() says.
 * OVER         the member is finished: rc 0 job over or left; else why. Nothing follows.
 * EVENT        out.events[index]. */
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
    MEMBER_CONNECTING,  /* no master: connecting, or waiting to try again */
    MEMBER_JOINING,     /* JOIN sent */
    MEMBER_CATCHING_UP, /* told to fetch, or fetching, or hashing */
    MEMBER_TRAINING,    /* in the list (or about to be), holds its version, the script runs */
    MEMBER_READY_SENT,  /* waits at its boundary for BEGIN */
    MEMBER_IN_ROUND,    /* round.phase says where */
    MEMBER_ENDED,       /* OVER was given */
};

enum link_state { LINK_NONE, LINK_WAITING, LINK_CONNECTING, LINK_IS_UP };

struct peer {
    bool used;
    uint32_t node_rank;
    uint64_t instance;
    char name[MSG_TEXT_MAX], address[MSG_TEXT_MAX];
    uint32_t slot; /* in the current list; UINT32_MAX: a joiner */
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
    struct round_id id; /* SENT, ENCODED, REDUCED, APPLIED */
    uint32_t chunk;
    uint64_t digest, mean_digest, delta_digest; /* see member_step */
    uint64_t version, job_step;                 /* ADOPTED own */
    const struct frame *frame;                  /* RECEIVED; SENT: type and flags, round, chunk */
    const struct msg *msg;                      /* MESSAGE */
    const struct member_attach *attach;
    struct {
        uint64_t samples, steps;
        double lr_sum;
        bool final;
    } submit;
    uint64_t sent_bytes, received_bytes; /* of the round so far: with any event, for DONE */
};

struct member {
    struct member_config config;
    enum member_state state;
    struct rng rng;
    uint64_t now_us;
    char text[MSG_REASON_MAX]; /* why the latest result has rc < 0 */

    bool attached, joined, submitted, leaving, founder;
    struct member_attach attach;
    struct msg_held held;
    bool rejoined; /* the script's values are of an anchor that is gone */
    struct round_id committed;

    bool master_up;
    uint32_t master_failures;
    uint64_t master_retry_us, master_lost_us, master_heard_us, beat_us;
    uint64_t incarnation;
    uint32_t rtt_us;

    struct epoch epoch; /* of the list below */
    uint32_t listed_count, slot;
    uint32_t slot_peers[SOLO_MEMBERS_MAX]; /* slot -> peer; own: ROUND_SELF */
    uint32_t slot_ranks[SOLO_MEMBERS_MAX];
    uint32_t device_counts[SOLO_MEMBERS_MAX];
    struct peer peers[SOLO_MEMBERS_MAX];
    struct epoch residual_epoch; /* list of the last committed round */

    struct msg_ready ready; /* of the merge in flight */
    uint64_t submitted_us, attach_us;
    uint32_t attempts;
    struct round round;
    struct catchup catchup;
};

uint64_t member_memory_bytes(const struct plan_model *model);
void member_init(struct member *member, const struct member_config *config);

/* One event. 0; SOLO_EINVAL: an event that this state does not allow (a caller's fault: SUBMIT
 * twice, before JOINED, ATTACH twice ...), told in the text, nothing changed. What peers and the
 * master do wrong never is an error here: it becomes actions.
 * REDUCED and RECEIVED(MEAN) that complete the mean need event.mean_digest and .delta_digest to
 * be right: order-free combinations over all chunks so far; keep them running and set always. */
int member_step(struct member *member, const struct member_event *event, struct out *out);

/* The peer with this rank and instance, for a link that was accepted; < 0: not known (yet). */
int member_peer_of(const struct member *member, uint32_t node_rank, uint64_t instance);

/* What to do with a DELTA, MEAN or STATE frame of which the header is here. */
enum round_take member_take(const struct member *member, uint32_t peer, const struct frame *frame);

/* Whom the member waits for, in words, "" for nobody; for solo_waiting_for. */
void member_waiting_for(const struct member *member, char *text, uint32_t size);

#endif
