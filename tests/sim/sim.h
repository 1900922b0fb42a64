/* sim.h - the protocol's machines in a simulated world: nodes, a master, a network with delay,
 * loss of connections, partitions, crashes, stops, skewed clocks; all from one seed.
 *
 * world.c     time, the queue of events
 * sim_net.c   the network
 * sim_node.c, sim_work.c, sim_script.c: a node (sim_node.h)
 * sim_chief.c the master's process
 * faults.c    what goes wrong, and when
 * checkers.c  the promises, looked at while it runs and at the end
 * sim_main.c  seeds
 *
 * Numbers are real: a cell stands for 256 elements (the smallest chunk) and is one integer, sums
 * are modulo 2^64 and so exact: a wrong, missing or doubled contribution shows at once. */
#ifndef SOLO_TESTS_SIM_H
#define SOLO_TESTS_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "protocol/master.h"
#include "protocol/member.h"

#define SIM_NODES_MAX 208u
#define SIM_MASTER    0u /* process number; nodes are 1 ... node_count */
#define SIM_CONNS_MAX 65536u
#define SIM_NEVER     UINT64_MAX
#define SIM_END_US    10000000u /* news of the end are with everybody by then */

#define SIM_SAMPLES_PER_STEP 4u

struct blob { /* a message or payload in flight; shared by its receivers */
    uint32_t references, size;
    uint64_t cells[]; /* payload cells, or a message's bytes */
};

enum sim_kind {
    SIM_TICK,    /* proc: its timer; serial must match */
    SIM_ACCEPT,  /* a connection arrives at the side that was asked */
    SIM_UP,      /* ... and its maker hears of it */
    SIM_GIVE_UP, /* the maker's deadline */
    SIM_DOWN,    /* end of a connection reaches `side` */
    SIM_MESSAGE, /* control: blob */
    SIM_HEADER,  /* data: frame */
    SIM_PAYLOAD, /* data: the frame whose header was taken */
    SIM_SENT,    /* data: the sender's buffer is free */
    SIM_ENCODED,
    SIM_REDUCED,
    SIM_APPLIED,
    SIM_ADOPTED,
    SIM_SCRIPT, /* the script's next turn */
    SIM_FAULT,  /* index into world.faults */
    SIM_START,  /* a process begins */
};

struct sim_event {
    uint64_t at_us, order;
    enum sim_kind kind;
    uint32_t proc, life; /* whose; dropped if it has died since */
    uint32_t conn, conn_serial;
    uint8_t side;
    bool ok;
    uint32_t chunk, serial;
    struct round_id id;
    struct frame frame;
    struct blob *blob;
};

struct conn {
    bool used;
    bool control;
    uint32_t serial;
    uint32_t proc[2]; /* 0: who made it */
    uint32_t life[2];
    bool open[2];                 /* in that side's eyes */
    bool made;                    /* the maker has heard that it stands */
    uint64_t last_us[2];          /* latest arrival at that side: bytes keep their order */
    uint64_t busy_us[2];          /* until then that side is sending */
    uint32_t peer[2];             /* data: index in that side's member.peers */
    uint64_t maker, wanted;       /* data: instances, as the LINK frame says them */
    struct sim_event *waiting[2]; /* frames at that side that wait behind a TAKE_LATER */
    uint32_t waiting_count[2], waiting_room[2];
};

enum trouble {
    TROUBLE_CRASH,       /* the process dies, its kernel closes its connections */
    TROUBLE_GONE,        /* the machine is gone without a word */
    TROUBLE_STOP,        /* SIGSTOP, SIGCONT later */
    TROUBLE_CUT_CONTROL, /* its connection to the master breaks */
    TROUBLE_CUT_LINKS,   /* those to other nodes break */
    TROUBLE_ONE_WAY,     /* nothing gets from proc to other for a while */
    TROUBLE_SPLIT,       /* nothing gets between two groups for a while */
    TROUBLE_NAN,
    TROUBLE_FLIP,   /* a byte of a payload is changed on its way */
    TROUBLE_MEMORY, /* a bit of its anchor falls over */
    TROUBLE_UNSEEN, /* a payload is changed, and no checksum tells */
    TROUBLE_LEAVE,
    TROUBLE_HALF_TOLD, /* the master dies while it tells a verdict: some have heard it */
    TROUBLE_TWICE,     /* a chunk comes twice at once */
    TROUBLE_TYPES,
};

struct trouble_plan {
    uint32_t at_event; /* 0: by the clock */
    uint64_t at_us, for_us;
    enum trouble type;
    uint32_t proc, other;
    uint64_t group; /* SPLIT: bit per process modulo 64 */
    bool comes_back, done;
};

struct block { /* a direction in which nothing arrives for a while */
    uint64_t until_us, from_group, to_group;
    uint32_t from, to; /* UINT32_MAX: by group */
};

struct proc { /* what a process is to the network */
    bool alive;
    uint32_t life;
    uint64_t stopped_until_us;
    int64_t offset_us, drift_ppm;
    uint32_t tick_serial;
    uint64_t tick_at_us;
};

struct sim_node {
    uint32_t proc, rank;
    uint64_t instance;
    struct member *member;
    void *memory;
    uint32_t control; /* conn; UINT32_MAX: none */
    uint32_t links[SOLO_MEMBERS_MAX];
    /* numbers: cells of the whole model */
    uint64_t *anchor, *momentum, *local, *staged, *staged_momentum, *mean;
    uint64_t *file_anchor, *file_momentum; /* what a state_dir holds */
    bool file_used, file_held;
    struct msg_held file;
    uint64_t version;            /* of anchor */
    uint64_t local_version;      /* of the anchor that the script's values began with */
    struct epoch residual_epoch; /* of the last round that was applied */
    uint64_t mean_digest;
    struct blob **parked; /* per (own chunk, slot) */
    uint32_t parked_count, parked_now;
    uint32_t encoding; /* buffers of deltas for others */
    uint32_t round_serial, serve_serial, script_serial;
    /* script */
    bool attached, joined, waiting, final, over;
    uint64_t steps_done, steps_total; /* of this life; all that it will do */
    uint64_t steps_at_anchor;         /* when local was last made the anchor */
    uint64_t committed_steps;         /* of this life: what is in committed rounds ends here */
    uint64_t interval, step_us, turn_us, boundary_us;
    uint64_t wait_since_us;
    bool nan, flip_next, memory_next, unseen_next, unseen, twice_next;
    uint64_t born_us;
    uint64_t must_end_us; /* it was connected when the job ended: the end was told; 0: not so */
    uint32_t merges, rejoins, errors;
    int last_rc;
};

struct part { /* of a member in an attempt */
    uint32_t proc, life;
    uint64_t from_steps, to_steps, weight;
};

struct attempt { /* as the master began it */
    struct round_id id;
    bool committed;
    uint32_t abort_proc, abort_life; /* who has heard that it was aborted; 0: nobody */
    uint32_t master_life;            /* of the master that began it */
    uint32_t part_count;
    struct part *parts;
    uint64_t *mean; /* what must come out */
};

struct told_list { /* an epoch that was told, and whose it was */
    struct epoch epoch;
    uint64_t members, told_us;
};

#define SIM_LISTS 512u

struct world {
    uint64_t seed, now_us, order;
    struct rng rng;
    bool trace;
    /* the queue of events */
    struct sim_event *heap;
    uint32_t heap_count, heap_room;
    /* the network */
    struct conn *conns;
    uint32_t conn_count;
    uint64_t delay_us, jitter_us, bytes_per_s;
    struct block blocks[64];
    uint32_t block_count;
    struct proc procs[SIM_NODES_MAX + 1];
    /* processes */
    struct master *master;
    struct master_out *master_out;
    uint64_t master_version; /* highest that was committed */
    uint64_t settling_us;    /* since when it settles */
    bool settling;
    struct out *out;
    struct sim_node nodes[SIM_NODES_MAX + 1];
    uint32_t node_count, founders;
    /* the job */
    struct plan_model model;
    uint32_t section_cells[PLAN_SECTIONS], cells, momentum_cells;
    uint32_t min_nodes;
    uint64_t first_us; /* a new job waits so long for node 0 */
    uint64_t timeout_us, lease_us;
    bool momentum, linger;
    uint64_t apply_us;   /* an outer step takes up to so long */
    uint32_t dies_after; /* verdicts until the master dies of it; 0: it does not */
    uint64_t dies_for_us;
    /* faults */
    struct trouble_plan faults[64];
    uint32_t fault_count;
    uint64_t calm_us; /* no fault after it */
    uint64_t end_us;
    /* checkers */
    struct attempt attempts[32]; /* the latest */
    uint32_t attempt_count;
    struct told_list lists[SIM_LISTS]; /* the latest */
    uint32_t list_count;
    uint64_t orphans_us; /* since when there are only joiners after the founders' end; 0: not so */
    bool bits_changed;   /* a fault has changed what no checksum guards */
    bool excused; /* a master settled without somebody who is alive: versions may be made twice */
    bool over;
    uint32_t commits, aborts, rejoins, events, steps;
    char failure[512];
};

/* ---- world.c */
void world_init(struct world *world, uint64_t seed, bool trace);
void world_free(struct world *world);
bool world_run(struct world *world); /* false: world.failure */
uint32_t sim_random(struct world *world, uint32_t bound);
bool sim_chance(struct world *world, uint32_t percent);
void sim_fail(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct sim_event *sim_post(struct world *world, enum sim_kind kind, uint32_t proc,
                           uint64_t after_us); /* valid until the next post */
uint64_t sim_clock(const struct world *world, uint32_t proc);
void sim_timer(struct world *world, uint32_t proc, uint64_t local_us);
struct blob *blob_new(uint32_t size);
struct blob *blob_share(struct blob *blob);
void blob_drop(struct blob *blob);
uint32_t conn_dial(struct world *world, uint32_t from, uint32_t to, bool control);
void conn_close(struct world *world, uint32_t conn, unsigned side);
void conn_break(struct world *world, uint32_t conn);
void conn_send(struct world *world, uint32_t conn, unsigned side, const struct msg *msg);
void conn_send_blob(struct world *world, uint32_t conn, unsigned side, struct blob *blob,
                    enum frame_type type);
void conn_send_frame(struct world *world, uint32_t conn, unsigned side, const struct frame *frame,
                     struct blob *blob, uint32_t serial);
void conn_recheck(struct world *world, uint32_t conn, unsigned side);
void proc_kill(struct world *world, uint32_t proc, bool silent);
void world_block(struct world *world, const struct block *block);

struct sim_event *sim_push(struct world *world, const struct sim_event *event);

/* ---- sim_net.c */
void conn_waiting_free(struct conn *conn, unsigned side);
void conn_forget(struct world *world, uint32_t index);
void conn_wait(struct world *world, const struct sim_event *event);

/* ---- sim_node.c, sim_work.c, sim_script.c */
void node_start(struct world *world, uint32_t proc);
void node_kill(struct world *world, uint32_t proc);
void node_event(struct world *world, struct sim_event *event);
bool node_header(struct world *world, struct sim_event *event); /* false: it waits */
void node_free(struct sim_node *node);
uint64_t cells_digest(const uint64_t *cells, uint32_t count, uint64_t index);
uint64_t node_digest(const struct world *world, const struct sim_node *node);
struct msg_settings sim_settings(const struct world *world);

/* ---- sim_chief.c */
void chief_start(struct world *world);
void chief_event(struct world *world, struct sim_event *event);

/* ---- faults.c */
void faults_plan(struct world *world);
void faults_do(struct world *world, struct trouble_plan *fault);
void faults_at_event(struct world *world);

/* ---- checkers.c */
void check_begin(struct world *world, const struct msg_begin *begin);
void check_members(struct world *world, const struct msg_members *members);
void check_event(struct world *world, const struct event *event);
void check_round(struct world *world, struct sim_node *node, bool fresh_residual);
void check_over(struct world *world);
void check_verdict(struct world *world, enum frame_type type, const struct msg_verdict *verdict);
void check_heard_abort(struct world *world, const struct sim_node *node,
                       const struct msg_verdict *verdict);
void check_settled(struct world *world, const struct event *event);
void check_free(struct world *world);
void check_applied(struct world *world, struct sim_node *node, const struct round_id *id);
void check_joined(struct world *world, struct sim_node *node, const struct member_result *result);
void check_complete(struct world *world, struct sim_node *node, const struct member_result *result);
void check_waits(struct world *world);
void check_end(struct world *world);

#endif
