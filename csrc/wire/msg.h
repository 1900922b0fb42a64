/* msg.h - the control messages between members and the master, as structs and as bytes.
 *
 * msg_encode writes a payload, msg_decode reads one with every count and text under a named
 * limit; a payload that is too short, too long or over a limit is SOLO_EPEER and leaves *out
 * undefined. Tables (MEMBERS, STATUS) live outside the struct: set `msg.table` first. One that is
 * not set is a table that this side does not take: SOLO_EPEER too.
 *
 * Pure: no allocation. Byte tables: docs/wire.md (a test compares). */
#ifndef SOLO_WIRE_MSG_H
#define SOLO_WIRE_MSG_H

#include "wire/frame.h"

#define MSG_TEXT_MAX   SOLO_NAME_MAX          /* bytes of a name with its final zero */
#define MSG_REASON_MAX 320u                   /* bytes of a reason with its final zero */
#define MSG_DONORS_MAX 16u                    /* donors named to one joiner */
#define MSG_SECTIONS   4u                     /* enum solo_role */
#define MSG_GONE_MAX   16u                    /* nodes whose end one MEMBERS tells */
#define MSG_OWED_BYTES (SOLO_MEMBERS_MAX / 8) /* a bit per slot */

/* One attempt at one round. The round that makes version v + 1 has the number v + 1;
 * attempts of a round count on over epochs until it is committed. */
struct round_id {
    struct epoch epoch;
    uint64_t round; /* 0: none */
    uint32_t attempt;
};

bool round_id_equal(struct round_id a, struct round_id b);

/* What must be equal on all nodes; compared as text so that both values can be told. */
struct msg_settings {
    char interval[MSG_TEXT_MAX], outer[MSG_TEXT_MAX], codec[32], versions[MSG_TEXT_MAX];
    char solo_version[32];
    uint64_t layout_hash; /* names, shapes, dtypes, roles of all tensors */
    uint32_t tensor_count;
    uint64_t elements[MSG_SECTIONS]; /* by enum solo_role */
};

struct msg_identity {
    uint32_t node_rank, device_count;
    uint64_t instance; /* random, one per process: a restart has another */
    char name[MSG_TEXT_MAX], address[MSG_TEXT_MAX]; /* of the node; where its data port is */
};

struct msg_held { /* the anchor that a member holds */
    bool held;    /* false: none, the rest is 0 */
    uint64_t version, digest, job_step;
};

struct msg_join {
    char job_id[MSG_TEXT_MAX];
    struct msg_identity identity;
    struct msg_settings settings;
    struct msg_held held;
    bool returning; /* was a member before this connection; founder: then too */
    bool founder;
    bool pending;              /* a merge of it is waiting: READY follows */
    struct epoch epoch;        /* of the last member list it got, in it or not; 0: none */
    struct round_id committed; /* the attempt that made held.version; round 0: unknown */
    struct round_id doubt;     /* sent DONE, no verdict; round 0: none */
    uint64_t doubt_digest;     /* of the mean */
    uint32_t epoch_count;      /* members in that list ... */
    uint32_t epoch_ranks[SOLO_MEMBERS_MAX]; /* ... and their node ranks, in slot order */
};

struct msg_admit {
    uint64_t incarnation;
    uint32_t lease_ms, timeout_ms;
    uint64_t version; /* of the job */
};

struct msg_refuse {
    int32_t rc;        /* enum solo_error */
    uint32_t retry_ms; /* 0: do not come back */
    char text[MSG_REASON_MAX];
};

enum member_standing {
    STANDING_JOINING = 0, /* known to the master, not yet asked to catch up */
    STANDING_CATCHING_UP, /* fetches the anchor */
    STANDING_MEMBER,      /* in the list of the epoch, trains */
    STANDING_READY,       /* waits at its boundary */
    STANDING_EXCHANGING,
    STANDING_DONE,
    STANDING_LEFT, /* said goodbye */
    STANDING_LOST, /* its connection or its lease ended */
    STANDING_COUNT,
};
const char *standing_name(enum member_standing standing);

struct msg_member { /* a row of MEMBERS: members first, in slot order, then joiners */
    struct msg_identity identity;
    bool listed; /* false: a joiner, without a slot */
    bool founder;
};

struct msg_gone { /* it was there when the last MEMBERS was sent */
    uint32_t node_rank;
    bool goodbye; /* it said it itself; else it was lost */
    char text[MSG_TEXT_MAX];
};

struct msg_members {
    struct epoch epoch;
    uint64_t version, job_step;
    uint32_t listed_count; /* members: rows 0 ... listed_count - 1 are slots */
    uint32_t count;        /* rows */
    struct msg_member rows[SOLO_MEMBERS_MAX];
    uint32_t gone_count; /* who went since, the latest of them */
    struct msg_gone gone[MSG_GONE_MAX];
};

struct msg_ready {
    uint64_t version, digest; /* of the anchor the delta is taken from */
    uint64_t weight, steps;
    double lr_sum;
    bool final;
};

struct msg_begin {
    struct round_id id;
    uint64_t version;                   /* base: every member holds it */
    uint32_t count;                     /* members = rows of the epoch's list */
    uint64_t weights[SOLO_MEMBERS_MAX]; /* by slot; 0: sends no delta */
    double lr_sum, steps;               /* weighted means over the contributors; 0: unknown */
    uint64_t job_step;                  /* after the round */
    uint32_t stall_ms;                  /* without progress for this long: FAULT */
};

struct msg_done {
    struct round_id id;
    uint64_t mean_digest, delta_digest; /* delta 0: contributed nothing, or all zeros */
    uint64_t sent_bytes, received_bytes, wait_us, exchange_us, apply_us; /* apply: last round's */
};

enum fault_kind {
    FAULT_NONFINITE = 1, /* text: the tensor */
    FAULT_LINK,          /* the connection to `rank` broke or cannot be made */
    FAULT_STALL,         /* no progress; `owed` names who owes chunks */
    FAULT_CORRUPT,       /* payload of `rank` failed its CRC */
    FAULT_LOCAL,         /* this node failed: text */
};

struct msg_fault {
    struct round_id id;
    enum fault_kind kind;
    uint32_t rank;
    uint8_t owed[MSG_OWED_BYTES]; /* bit per slot */
    char text[MSG_REASON_MAX];
};

struct msg_verdict { /* COMMIT and ABORT */
    struct round_id id;
    uint64_t mean_digest; /* COMMIT: of the mean that is applied */
    bool again;           /* ABORT: the round will be tried again; false: `rc` ends the merge */
    int32_t rc;
    uint32_t rank; /* ABORT: on whose account; UINT32_MAX: nobody's */
    char text[MSG_REASON_MAX];
};

struct msg_heartbeat { /* and its ACK, which sends the time back */
    uint64_t sent_us;
    uint32_t rtt_us; /* as last measured by the member */
    uint32_t chunks; /* progress in the round */
};

struct msg_leave {
    bool finished; /* the script ended well */
    char text[MSG_REASON_MAX];
};

struct msg_catchup {
    uint64_t version, digest, job_step;
    bool own; /* the job begins with what you hold, or your own values: no donors */
    bool founder;
    uint32_t donor_count;
    uint32_t donors[MSG_DONORS_MAX]; /* node ranks, rows of MEMBERS sent before */
};

struct msg_caught_up { /* after a catch-up, and after each commit: what I hold now */
    uint64_t version, digest, job_step;
    bool held; /* false: failed; text says why */
    char text[MSG_REASON_MAX];
};

struct msg_end {
    int32_t rc; /* 0: the founders have finished */
    char text[MSG_REASON_MAX];
};

struct msg_link { /* first frame on a data connection */
    uint32_t node_rank, stream, stream_count;
    uint64_t instance;    /* of the sender */
    uint64_t to_instance; /* whom it means to reach */
};

struct msg_status_row {
    struct msg_identity identity;
    enum member_standing standing;
    bool listed;
    uint64_t version, last_seen_ms;
    char left[MSG_TEXT_MAX]; /* why it is gone */
};

/* The arguments of a job as its first node was given them; "": not told. */
struct msg_arguments {
    char interval[MSG_TEXT_MAX], outer[MSG_TEXT_MAX], codec[MSG_TEXT_MAX], versions[MSG_TEXT_MAX];
};

struct msg_status {
    char job_id[MSG_TEXT_MAX], solo_version[32];
    struct msg_arguments arguments; /* versions: else of whoever joined first */
    uint32_t settings_rank;         /* who that is, if they are its; UINT32_MAX: the master's */
    char master_name[MSG_TEXT_MAX], master_address[MSG_TEXT_MAX];
    uint64_t master_pid, round, version;
    uint64_t wall_us; /* the master's clock when it answered, since 1970 */
    struct epoch epoch;
    uint32_t min_nodes, expected_nodes, member_count, count;
    bool over;
    struct msg_status_row rows[SOLO_MEMBERS_MAX]; /* live ones, then who left */
};

struct msg {
    enum frame_type type;
    union {
        struct msg_join join;
        struct msg_admit admit;
        struct msg_refuse refuse;
        struct msg_ready ready;
        struct msg_begin begin;
        struct msg_done done;
        struct msg_fault fault;
        struct msg_verdict verdict;
        struct msg_heartbeat heartbeat;
        struct msg_leave leave;
        struct msg_catchup catchup;
        struct msg_caught_up caught_up;
        struct msg_end end;
        struct msg_link link;
    } as;
    struct { /* MEMBERS and STATUS: the table, owned by the caller; NULL: none is awaited */
        struct msg_members *members;
        struct msg_status *status;
    } table;
};

/* Writes the payload of msg; its size, or SOLO_ELIMIT when it does not fit. */
int msg_encode(const struct msg *msg, void *bytes, size_t capacity);

/* Reads the payload of a frame of this type. For MEMBERS and STATUS out->table has to point to
 * a table of that kind, or to none; other types leave it alone. */
int msg_decode(enum frame_type type, const void *bytes, size_t size, struct msg *out);

/* Names each field of a message in order (tables: of one row), with its kind: u1 u2 u4 u8 i4 f8
 * bool, count (u4 under a limit), text (u2 length, bytes), bytes. Not for two threads at once;
 * for documentation and its test. SOLO_EINVAL: not a message. */
int msg_describe(enum frame_type type,
                 void (*field)(void *context, const char *name, const char *kind), void *context);

#endif
