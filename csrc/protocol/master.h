/* master.h - the membership service: who is in, which round, commit or abort. Pure; soft state
 * only: after a restart everything is told by the members.
 *
 * ## How to drive it
 * Feed ACCEPTED when a control connection's hello is over (conn: the driver's number for it, not
 * used again before CLOSED was fed or CLOSE was done), MESSAGE for each of its
 * messages, CLOSED when it ended, TICK at out.wake_us. Then do the actions in order; if
 * out.more, call master_step with a TICK at once for the rest.
 *
 * SEND    out.msgs[index] or, if `msg` is set, that message, to conn. MEMBERS: table is set.
 *         A connection that cannot take it (a full queue of a named limit) is closed: CLOSED.
 * CLOSE   after what was sent before it. No CLOSED follows.
 * STATUS  send master_status() to conn as FRAME_STATUS.
 * EVENT   out.events[index], for events.jsonl.
 * OVER    the job is over (rc): end when the queues are empty or after a second. */
#ifndef SOLO_PROTOCOL_MASTER_H
#define SOLO_PROTOCOL_MASTER_H

#include "protocol/event.h"
#include "protocol/plan.h"

#define MASTER_FIRST_NODE_US 120000000u /* start of Python and torch, added to the timeout */
#define MASTER_NODES_MAX     SOLO_MEMBERS_MAX
#define MASTER_CONNS_MAX     512u /* the driver refuses more */
#define MASTER_LEFT_MAX      64u  /* who left, remembered for the status and for penalties */
#define MASTER_ATTEMPTS_MAX  12u  /* of one round, and one for each member; then a typed error */
#define MASTER_BLAME_MAX     3u   /* reports of failed attempts against one node: it is dropped */
#define MASTER_CATCHUPS_MAX  5u   /* failed catch-ups: it has to come again */
#define MASTER_CATCHUPS_HELD 2u   /* ... so many of them, and rounds no longer wait for it */
#define MASTER_FOUND_US                                                                            \
    2000000u                         /* after its start before a fresh job may begin: members of an
                                        earlier master come back within it */
#define MASTER_GRACE_MIN_US 2000000u /* least wait for stragglers before SUMMON */
#define MASTER_GATHER_US    5000u    /* joiners within it make one epoch */
#define MASTER_PENALTY_US   1000000u /* first pause of a node dropped for faults; doubles ... */
#define MASTER_PENALTY_MAX  60000000u

struct master_config {
    char job_id[MSG_TEXT_MAX];
    char name[MSG_TEXT_MAX], address[MSG_TEXT_MAX];
    struct msg_arguments arguments; /* only told: what nodes bring when they join is compared */
    uint64_t pid;
    uint64_t incarnation; /* wall clock in us at its start; raised above what members report */
    uint32_t min_nodes, expected_nodes;
    uint64_t timeout_us, lease_us;
    uint64_t first_us; /* so long a new job waits for node 0, to begin with its values */
    bool linger;
};

enum master_event_type { MASTER_ACCEPTED, MASTER_MESSAGE, MASTER_CLOSED, MASTER_TICK };

struct master_event {
    enum master_event_type type;
    uint64_t now_us;
    uint32_t conn;
    const struct msg *msg;
    const char *address; /* ACCEPTED */
    const char *text;    /* CLOSED: why */
};

enum master_action_type { MASTER_SEND, MASTER_CLOSE, MASTER_STATUS, MASTER_EVENT, MASTER_OVER };

struct master_action {
    enum master_action_type type;
    uint32_t conn, index;
    const struct msg *msg; /* SEND: instead of msgs[index] */
    int rc;
};

#define MASTER_OUT_ACTIONS_MAX 1024u
#define MASTER_OUT_MSGS_MAX    64u
#define MASTER_OUT_EVENTS_MAX  64u

struct master_out {
    uint32_t count, msg_count, event_count, events_dropped;
    struct master_action actions[MASTER_OUT_ACTIONS_MAX];
    struct msg msgs[MASTER_OUT_MSGS_MAX];
    struct event events[MASTER_OUT_EVENTS_MAX];
    bool more;        /* feed a TICK at once */
    uint64_t wake_us; /* feed a TICK then; UINT64_MAX: not needed */
};

enum master_phase {
    MASTER_SETTLING,   /* just started: who was there before? */
    MASTER_FOUNDING,   /* fewer than min_nodes, no anchor chosen */
    MASTER_BETWEEN,    /* members train; joiners are admitted */
    MASTER_EXCHANGING, /* BEGIN was sent, no verdict yet */
    MASTER_ENDED,
};

struct node { /* a member or a joiner; every used one has a connection */
    bool used;
    uint32_t conn;
    struct msg_identity identity;
    struct msg_held held; /* as it told last */
    bool live;            /* it holds it in memory, not only in a file */
    enum member_standing standing;
    bool listed, founder;
    bool returning;          /* was a member before this connection */
    bool partial;            /* in its first interval: summoned rather than waited for */
    bool summoned, left_out; /* left out: non-finite in this round, weight 0 */
    uint32_t slot;           /* while listed and the epoch is current */
    uint32_t blame;          /* failed attempts on its account since a commit */
    uint32_t catchups, donor_count;
    uint32_t owed;   /* messages to send: enum owed of master_parts.h */
    uint32_t chunks; /* progress, by its heartbeat */
    uint64_t heard_us, joined_us;
    uint64_t asked_us; /* when it was last asked to catch up, or to apply what was in doubt */
    struct msg_ready ready;
    struct msg_done done;
    struct round_id doubt; /* sent DONE, saw no verdict, when it came */
    uint64_t doubt_digest;
    struct round_id made_by; /* the attempt that made what it held when it came */
    struct epoch epoch;      /* it reported */
};

struct master_left {
    struct msg_identity identity;
    char why[MSG_TEXT_MAX];
    uint64_t at_us, version, penalty_us; /* penalty: dropped for faults, may come back after */
    bool finished, founder, goodbye;
};

struct master {
    struct master_config config;
    enum master_phase phase;
    uint64_t now_us, phase_us, idle_us;
    bool had_nodes; /* somebody has been here */
    struct node nodes[MASTER_NODES_MAX];
    uint32_t node_count; /* every used node is below */

    bool settings_known;
    struct msg_settings settings; /* the job's, from whoever came first */
    uint32_t settings_rank;
    uint64_t refused_instance; /* asked for a rank that is taken, and may ask once more */

    bool founded;      /* version and digest are set */
    bool begun;        /* the first round has begun: who comes now is no founder */
    bool finished_any; /* a founder has finished */
    bool waiting_told, draining;
    uint64_t version, digest, job_step;
    bool digest_known;

    struct epoch epoch, highest; /* highest: seen in any report */
    bool relist, rows_stale;
    uint64_t relist_us;
    uint32_t listed_count;
    struct msg_members members;                            /* as last sent */
    uint32_t expect_count, expect_ranks[SOLO_MEMBERS_MAX]; /* whose return is waited for */
    struct epoch expect_epoch;

    struct round_id round; /* attempt in progress, or the last one */
    struct round_id committed;
    uint64_t committed_digest;
    uint32_t attempts; /* of this round since a commit or a drop */
    uint64_t first_ready_us, all_ready_us, begin_us, progress_us, stall_us, retry_us;
    uint64_t last_commit_us, interval_us;

    struct msg msg_admit, msg_members, msg_begin, msg_verdict, msg_end; /* for many receivers */
    struct master_left left[MASTER_LEFT_MAX];
    uint32_t left_told;  /* so many of them are in a MEMBERS that was sent */
    uint32_t left_count; /* the newest is at (left_count - 1) % MASTER_LEFT_MAX */
};

int master_init(struct master *master, const struct master_config *config, uint64_t now_us);

/* One event. Always 0: what members do wrong becomes actions. */
int master_step(struct master *master, const struct master_event *event, struct master_out *out);

void master_status(const struct master *master, struct msg_status *out);

#endif
