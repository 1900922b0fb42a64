/* engine.h - struct solo: one node's engine, and what the files of this room call in each
 * other.
 *
 * One thread owns all of it, the loop thread; callers post to the mailbox. What other threads
 * may touch is in `struct shared` and in handles. */
#ifndef SOLO_NODE_ENGINE_H
#define SOLO_NODE_ENGINE_H

#include <stdatomic.h>

#include "node/events.h"
#include "node/handle.h"
#include "node/job.h"
#include "node/saver.h"
#include "os/door.h"
#include "os/link.h"
#include "os/mailbox.h"
#include "protocol/member.h"

#define ENGINE_LEAVE_US 2000000u /* the goodbye has so long to reach the master */
#define ENGINE_HELLO_US 5000000u /* a connection has so long to stand */
#define ENGINE_LOOK_US  250000u  /* how often the words of solo_waiting_for are renewed */

/* What the configuration said, copied. */
struct settings {
    char job_id[SOLO_NAME_MAX], node_name[SOLO_NAME_MAX], worker_url[SOLO_NAME_MAX];
    char interval[SOLO_NAME_MAX], versions[SOLO_NAME_MAX], codec[32];
    char state_dir[STORE_PATH_MAX];
    char *token; /* NULL: none */
    struct solo_url master;
    struct rule rule;
    uint32_t node_rank, device_count, min_nodes, timeout_ms, lease_ms, streams, start_step;
    bool insecure, same_host_shm;
};

/* Read by any thread. */
struct shared {
    atomic_int due, over;
    _Atomic uint64_t version, job_step;
    atomic_bool busy; /* a merge is in flight */
    struct lock lock; /* of what follows */
    int over_rc;
    char over_text[SOLO_TEXT_MAX];
    char waiting_for[SOLO_TEXT_MAX];
    struct solo_member *members;
    uint32_t member_count;
};

struct call { /* what a caller waits for; two owners like a handle */
    struct latch latch;
    atomic_uint owners;
    struct solo *solo;
    struct lock lock; /* of gave_up, and held while the caller's memory below is used */
    bool gave_up;     /* the caller waits no more: its memory may be gone */
    void *const *data;
    struct solo_joined joined;
    bool finished; /* leave */
    char reason[SOLO_NAME_MAX];
    size_t tensor; /* read_anchor */
    float *anchor, *momentum;
    uint64_t at, digest; /* elements that were read, and of which anchor */
};

/* The data link to one of member.peers. */
struct peer_link {
    struct solo *solo;
    struct link *link;
    uint32_t index;      /* of the peer */
    uint32_t generation; /* counts links; what was begun for an older one is void */
    uint64_t made;       /* the maker's number of the link, in its greeting */
    bool dialed;
    char lost_text[MSG_REASON_MAX];
    int lost_rc;
};

/* One piece of work or of news. */
enum work_kind {
    WORK_ENCODE,
    WORK_REDUCE,
    WORK_APPLY,
    WORK_ADOPT,
    WORK_GIVE, /* the anchor into the script's values; then what waits for them is told */
    WORK_OWN,  /* a chunk of ours that needs no encoding: news */
    WORK_MASTER_DOWN,
    WORK_LINK_DOWN,
};

struct work {
    enum work_kind kind;
    struct round_id id;
    uint32_t chunk, peer, generation;
    bool own;
    int rc;
};

struct works { /* a fifo that grows */
    struct work *at;
    uint32_t first, count, capacity;
};

struct solo {
    struct settings settings;
    struct shared shared;
    struct events events;
    struct thread thread;
    struct loop *loop;
    struct mailbox *mailbox;

    struct member member;
    struct out out;
    bool stepping; /* member_step is on the stack: nothing may feed it */
    struct loop_timer tick, look;
    struct loop_task work_task;
    bool work_queued;

    struct conn *control, *control_leaving;
    struct msg_members table; /* of the MEMBERS message being decoded */
    uint32_t control_generation;
    char control_text[MSG_REASON_MAX];
    uint8_t payload[FRAME_MESSAGE_MAX]; /* of the message being encoded */
    struct call *leaving;               /* waits until the goodbye is out */

    struct door *door;
    struct peer_link links[SOLO_MEMBERS_MAX];
    uint64_t links_made;

    bool has_job;
    struct job job;
    void *member_memory;
    struct works news, works; /* what happened; what is to be done, a slice a turn */
    uint64_t fetch_version;   /* being fetched; 0 and none: see fetching */
    bool fetching, applying, adopting, values_given; /* ...ing: the work has begun */
    bool giving;                                     /* the work waits, or has begun */
    struct msg_held own;                             /* what a state_dir gave, or version 0 */
    uint64_t sent_bytes, received_bytes;
    struct saver saver;
    bool has_saver;

    struct call *attach;
    struct solo_handle *handle;
    void *const *data;
    struct solo_result result; /* of the merge, as soon as its values are given */
    struct epoch reported_epoch;
    bool ended, left; /* left: this node said goodbye */
};

/* drive.c: one event to the machine, then its actions. Never from inside an action. An error is
 * the caller's: an event that the state does not allow. */
int drive_feed(struct solo *solo, struct member_event *event);
struct member_event drive_event(struct solo *solo, enum member_event_type type);

/* work.c: what takes time, a slice per turn of the loop. */
void work_add(struct solo *solo, const struct work *work);
void work_round(struct solo *solo, bool fresh_residual);
void work_drop_round(struct solo *solo);
void work_drop_serves(struct solo *solo);
void work_fetch(struct solo *solo, uint64_t version); /* it begins, unless it has */
void work_again(struct solo *solo);                   /* what held the work up may be gone */
/* The sum of this chunk now, if all of it is there: what was lent for it is lent no longer. */
bool work_reduce_now(struct solo *solo, uint32_t chunk);
void work_finish(struct solo *solo); /* an outer step that has begun is not left half taken */
void work_deinit(struct solo *solo);

/* uplink.c: the connection to the master. */
void uplink_connect(struct solo *solo);
void uplink_close(struct solo *solo);
void uplink_send(struct solo *solo, const struct msg *msg);
void uplink_free(struct solo *solo);

/* peer.c: the data links. */
int peer_listen(struct solo *solo); /* opens the door and fills in identity.address */
void peer_connect(struct solo *solo, uint32_t peer);
void peer_close(struct solo *solo, uint32_t peer);
void peer_send_chunk(struct solo *solo, const struct action *action);
void peer_send_state(struct solo *solo, const struct action *action);
void peer_resume_all(struct solo *solo);
void peer_close_all(struct solo *solo); /* the links; the door stays */
/* Nothing is read from or written to the area by links any more. */
void peer_release_all(struct solo *solo, const struct area *area);
void peer_free_all(struct solo *solo);

/* report.c: what others may see: events, log lines, member list, words. */
void report_event(struct solo *solo, const struct event *event);
void report_state(struct solo *solo); /* after each step */

/* attach.c: the ends of what callers wait for. */
void attach_finish(struct solo *solo, const struct member_result *result);
void merge_finish(struct solo *solo, const struct member_result *result);
bool attach_give(struct solo *solo); /* a block of values for one of the two; true: the last */
void engine_over(struct solo *solo, int rc); /* rc < 0: text in member.text */
void engine_fail(struct solo *solo, int rc); /* a fault of this node: this thread's text */
struct call *call_new(struct solo *solo);    /* NULL: no memory */
/* Posts it and waits; drops the caller's share. `out` (may be NULL) gets call->joined. */
int call_do(struct call *call, mailbox_fn fn, uint64_t deadline_us, struct solo_joined *out);
void call_finish(struct call *call, int rc, const char *text);
/* The caller's memory may be used until call_return; false: it has given up. */
bool call_borrow(struct call *call);
void call_return(struct call *call);

#endif
