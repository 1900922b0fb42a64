/* solo.h - the C API of libsolo: errors, the interval sync of one node, the master.
 *
 * Threads: every function may be called from any thread unless it says otherwise; one
 * handle is used by one thread at a time. Nothing here prints, exits or aborts on what a
 * peer or a caller did. The collectives of a fixed world are in solo_group.h, checkpoint
 * reading in solo_ckpt.h; the three together are all that code outside csrc may include.
 *
 * Memory words: *borrows* (the caller keeps it alive until ...), *takes* (ours now, even on
 * error), *gives* (the caller frees it with ...). Structs that begin with `size` are
 * versioned: set it to sizeof, later fields then read as zero. */
#ifndef SOLO_H
#define SOLO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SOLO_VERSION      "0.1.0"
#define SOLO_WIRE_VERSION 3u /* two nodes must agree on it; any change of wire/ raises it */
#define SOLO_ABI_VERSION  1u
#define SOLO_PORT_DEFAULT 29400u
#define SOLO_NAME_MAX     128u /* bytes of a host, job or tensor name kept in messages */
#define SOLO_TEXT_MAX     512u /* bytes of an error text, with its final zero */
#define SOLO_MEMBERS_MAX  256u /* members of one job */

/* ---- errors -------------------------------------------------------------------------- */

/* 0 or a count is success; every error is negative. */
enum solo_error {
    SOLO_OK = 0,
    SOLO_EINVAL = -1,      /* an argument is wrong */
    SOLO_ENOMEM = -2,      /* memory, or a memory limit */
    SOLO_ESYS = -3,        /* a system call failed; the text has errno's words */
    SOLO_EAGAIN = -4,      /* not now: would block, or a named limit of things in flight */
    SOLO_ETIMEDOUT = -5,   /* a deadline passed; the text says who was waited for */
    SOLO_ECLOSED = -6,     /* the other side, or this handle, was closed */
    SOLO_EPEER = -7,       /* a peer broke the protocol; its connection is closed */
    SOLO_EAUTH = -8,       /* token missing or wrong, or an address not allowed without one */
    SOLO_EVERSION = -9,    /* wire, solo or torch versions do not fit */
    SOLO_EREFUSED = -10,   /* the master says no: rank taken, wrong job, second master */
    SOLO_EMISMATCH = -11,  /* model layout, dtype, interval, codec or outer step differ */
    SOLO_EABORTED = -12,   /* given up by abort, or the round was aborted for good */
    SOLO_EOVER = -13,      /* the job is over: its founders have finished */
    SOLO_ENONFINITE = -14, /* a NaN or Inf in this node's parameters; the text names it */
    SOLO_ECORRUPT = -15,   /* bytes fail their checksum or their format's rules */
    SOLO_ELIMIT = -16,     /* more than a named limit allows */
    SOLO_ENOTSUP = -17,    /* has no meaning, or is not supported here */
    SOLO_EINUSE = -18,     /* port, name or handle is in use */
    SOLO_ENOENT = -19,     /* no such file, name or record */
};

/* The name of an error ("SOLO_EPEER"); never NULL. */
const char *solo_error_name(int rc);

/* The text of this thread's latest error: what, why, how to fix it. Valid until the next
 * call into libsolo on this thread. */
const char *solo_error_text(void);

const char *solo_version(void);
uint32_t solo_abi_version(void);

/* The instruction set in use: "scalar", "avx2", "avx512" or "neon". SOLO_ISA in the
 * environment caps it (a test's means, e.g. SOLO_ISA=scalar). */
const char *solo_isa(void);

/* ---- log ----------------------------------------------------------------------------- */

enum solo_log_level { SOLO_LOG_DEBUG, SOLO_LOG_INFO, SOLO_LOG_WARN, SOLO_LOG_ERROR };
typedef void (*solo_log_fn)(void *context, enum solo_log_level level, const char *text);

/* Who gets the library's log lines; NULL: nobody (the default). Process-wide; called from
 * any thread, one at a time; must not call libsolo. */
void solo_log_set(solo_log_fn fn, void *context, enum solo_log_level least);

/* ---- tensors ------------------------------------------------------------------------- */

enum solo_dtype {
    SOLO_F32,
    SOLO_F64,
    SOLO_F16,
    SOLO_BF16,
    SOLO_F8E4M3,
    SOLO_F8E5M2,
    SOLO_F8E4M3Z,
    SOLO_F8E5M2Z,
    SOLO_F8E8M0,
    SOLO_I8,
    SOLO_U8,
    SOLO_I16,
    SOLO_U16,
    SOLO_I32,
    SOLO_U32,
    SOLO_I64,
    SOLO_U64,
    SOLO_BOOL,
    SOLO_C64,
    SOLO_C128,
    SOLO_C32,
    SOLO_BYTES,
    SOLO_DTYPE_COUNT,
};

/* Bytes of one element; 0 for an unknown value. */
size_t solo_dtype_bytes(enum solo_dtype dtype);
const char *solo_dtype_name(enum solo_dtype dtype); /* as torch writes it: "float32" */

/* What a merge does with a tensor of the model. */
enum solo_role {
    SOLO_PARAM, /* weighted mean of deltas, through codec and outer step; floats only */
    SOLO_EXACT, /* as SOLO_PARAM, but always sent as fp32: small tensors, norms, biases */
    SOLO_MEAN,  /* weighted mean, sent as fp32, no outer step: float buffers (BatchNorm) */
    SOLO_MAX,   /* maximum over members: integer and bool buffers; kept as int64 */
};

struct solo_tensor {
    const char *name; /* borrowed during the call */
    uint64_t count;   /* elements, contiguous */
    enum solo_dtype dtype;
    enum solo_role role;
};

/* ---- the interval sync of one node --------------------------------------------------- */

struct solo_config {
    size_t size;
    const char *job_id;     /* NULL or "": "default" */
    const char *master_url; /* tcp://HOST:PORT */
    const char *worker_url; /* where others reach this node; NULL: route to the master */
    const char *node_name;  /* for messages; NULL: the host's name */
    uint32_t node_rank;     /* identity of this node in the job */
    uint32_t device_count;  /* ranks on this node, for data_world_size */
    const char *token;      /* shared secret; NULL: none, loopback only unless insecure */
    int insecure;           /* 1: other than loopback without a token */
    uint32_t min_nodes;     /* 0: 1 */
    uint32_t timeout_ms;    /* one deadline for start-up waits; 0: 300 000 */
    uint32_t lease_ms;      /* silence after which a member is dropped; 0: 10 000 */
    uint32_t streams;       /* TCP connections per peer; 0: chosen */
    uint32_t start_step;    /* steps this node has already done when it attaches */
    const char *interval;   /* "100" or "0:1,500:16"; compared between nodes as text */
    const char *outer;      /* "avg", "slowmo", "nesterov", with "lr=..,beta=.." after ':' */
    const char *codec;      /* "fp32", "bf16", "int8", "int4" */
    const char *versions;   /* "torch=2.13.0 python=3.11": compared, told in words */
    const char *state_dir;  /* NULL: none */
    int same_host_shm;      /* 1: shared memory to peers on this host (default), -1: never */
};

struct solo; /* one node's sync engine: a loop thread, its connections, anchor and momentum */

/* Opens the engine and connects to the master in the background; waits for nothing.
 * Borrows config during the call. Gives *out: solo_close. */
int solo_open(const struct solo_config *config, struct solo **out);

struct solo_joined {
    size_t size;
    uint64_t version;  /* of the anchor that was taken; 0: the job begins */
    uint64_t job_step; /* optimizer steps the job has done, for schedules */
    uint32_t slot;
    uint32_t member_count;
    int founder;  /* 1: was there before the first round */
    int replaced; /* 1: `data` now holds other values than the caller brought */
};

/* Joins the job with this model: blocks until admitted with the job's anchor, or until
 * timeout_ms. `data[i]` points to tensor i's elements (host memory, contiguous); they are
 * read (a founding node's values become the anchor, version 0, if it is the first) and
 * overwritten with the anchor. Errors: SOLO_EREFUSED, SOLO_EMISMATCH, SOLO_EVERSION,
 * SOLO_EAUTH, SOLO_ETIMEDOUT, SOLO_EOVER, SOLO_ELIMIT. Once per handle. */
int solo_attach(struct solo *solo, const struct solo_tensor *tensors, size_t count,
                void *const *data, struct solo_joined *out);

/* What one merge is given beside the data. */
struct solo_contribution {
    size_t size;
    uint64_t samples; /* since the last merge: the weight. 0 with steps: unknown, and the round
                         weighs every member by its steps; 0 without: contributes nothing */
    uint64_t steps;   /* optimizer steps since the last merge */
    double lr_sum;    /* sum of inner learning rates over these steps; 0: unknown */
    int final;        /* 1: this node leaves after this merge: its script ended */
};

enum solo_outcome {
    SOLO_MERGED,   /* committed: data holds the new anchor */
    SOLO_ALONE,    /* committed with this node as the only member */
    SOLO_REJOINED, /* fell out of the job and came back: data holds the job's anchor */
};

struct solo_result {
    size_t size;
    enum solo_outcome outcome;
    uint64_t version; /* after the merge */
    uint64_t round;
    uint32_t member_count;
    uint32_t contributor_count; /* members whose weight was not 0 */
    uint32_t attempts;          /* 1: at the first try */
    int zero_inner_momentum;    /* 1: the outer rule asks to zero SGD's inner momentum */
    uint64_t digest;            /* of the anchor */
    uint64_t sent_bytes, received_bytes;
    uint64_t wait_us, exchange_us, apply_us; /* waiting for others / moving / outer step */
};

struct solo_handle; /* one merge in flight */

/* Begins a merge. Borrows `data` (as in solo_attach) until the handle is done: nobody may
 * write to it meanwhile. One merge at a time: SOLO_EAGAIN otherwise. Gives *out. */
int solo_submit(struct solo *solo, void *const *data, const struct solo_contribution *contribution,
                struct solo_handle **out);

/* Waits up to timeout_ms (0: only looks). SOLO_EAGAIN: not yet, the handle lives on.
 * Anything else ends the handle: 0 with *out, or the merge's error; after an error `data`
 * is as it was when submitted. */
int solo_wait(struct solo_handle *handle, uint32_t timeout_ms, struct solo_result *out);

/* Whom a merge in flight is waiting for, in words ("node 3 (10.0.0.4), last heard 4 s
 * ago"); "" when for nobody. Copies at most size bytes with the final zero. */
int solo_waiting_for(struct solo *solo, char *text, size_t size);

/* 1: the others are ready and this node is asked to merge at its next step, before its
 * interval is full (a joiner's first interval, a straggler). Cheap: one atomic load. */
int solo_due(const struct solo *solo);

/* 1: the job is over for this node (its founders finished). Cheap: one atomic load. */
int solo_over(const struct solo *solo);

struct solo_member {
    uint32_t node_rank, slot, device_count;
    char name[SOLO_NAME_MAX];
    char address[SOLO_NAME_MAX];
};

/* The members of the current epoch, in slot order: up to `capacity`; returns the count. */
int solo_members(const struct solo *solo, struct solo_member *out, size_t capacity);
uint64_t solo_job_version(const struct solo *solo);
uint64_t solo_job_step(const struct solo *solo);

/* The next event of the sync as one JSON object (join, leave, round, abort, master lost and
 * found, ...), oldest first: its length, 0 if there is none. The queue keeps the latest
 * 1,024; a lost one is counted in the next ("dropped"). */
int solo_next_event(struct solo *solo, char *json, size_t size);

/* Copies the committed anchor (fp32) and outer momentum of tensor i; either may be NULL.
 * SOLO_MAX tensors have neither: SOLO_ENOTSUP. Not while a merge is in flight. */
int solo_read_anchor(struct solo *solo, size_t tensor, float *anchor, float *momentum);

/* Says goodbye: nobody waits for this node any more. `finished` 1: the script ended well. */
int solo_leave(struct solo *solo, int finished, const char *reason);

/* Wakes and fails whatever waits, closes all connections, joins the thread, frees. A handle
 * in flight ends with SOLO_ECLOSED first. NULL is allowed. */
void solo_close(struct solo *solo);

/* Bytes that solo_attach will allocate for this model with this configuration; 0: it would refuse
 * the model, and the text says why. */
uint64_t solo_memory_needed(const struct solo_config *config, const struct solo_tensor *tensors,
                            size_t count);

/* ---- the master ---------------------------------------------------------------------- */

struct solo_master_config {
    size_t size;
    const char *job_id;
    const char *url; /* tcp://HOST:PORT to listen on */
    int listen_fd;   /* > 0: already bound and listening; taken */
    const char *token;
    int insecure;
    uint32_t min_nodes, expected_nodes;
    uint32_t timeout_ms, lease_ms;
    const char *events_path; /* events.jsonl is appended there; NULL: none */
    int linger;              /* 1: goes on after its founders finished, while members are there */
    /* The job's arguments as its first node was given them, for solo_status alone, so that a
     * launcher can compare its own before Python starts; NULL: not known. */
    const char *interval, *outer, *codec, *versions;
    /* A new job begins with the values of the lowest node rank that is there. So long after its
     * first node came it waits for node 0 to be that one; 0: not at all. */
    uint32_t first_ms;
};

struct solo_master;
int solo_master_open(const struct solo_master_config *config, struct solo_master **out);
/* Runs on the calling thread until the job is over (0), solo_master_stop, or an error. */
int solo_master_run(struct solo_master *master);
void solo_master_stop(struct solo_master *master); /* from any thread or a signal handler */
void solo_master_close(struct solo_master *master);

/* ---- asking a master ----------------------------------------------------------------- */

enum solo_reach { /* how an attempt to reach a master ended; for messages */
                  SOLO_REACHED,
                  SOLO_NO_NAME,
                  SOLO_CONN_REFUSED,
                  SOLO_NO_ANSWER,
                  SOLO_NO_ROUTE,
                  SOLO_NOT_SOLO,
                  SOLO_BAD_TOKEN,
                  SOLO_OTHER_WIRE,
                  SOLO_OTHER_JOB,
};

struct solo_status_member {
    uint32_t node_rank, slot, device_count;
    int live;
    uint64_t version, last_seen_ms; /* ms since it was last heard */
    char name[SOLO_NAME_MAX], address[SOLO_NAME_MAX], state[32], left[SOLO_NAME_MAX];
};

struct solo_status {
    size_t size;
    enum solo_reach reach;
    uint32_t rtt_us, wire_version;
    char solo_version[32], job_id[SOLO_NAME_MAX], versions[SOLO_NAME_MAX];
    char master_name[SOLO_NAME_MAX], master_address[SOLO_NAME_MAX];
    uint64_t master_pid, incarnation, epoch, round, version;
    uint32_t min_nodes, expected_nodes, member_count, listed;
    int over;
    struct solo_status_member members[SOLO_MEMBERS_MAX]; /* live ones, then who left */
    /* The job's arguments as the master was told them (solo_master_config), else as the first node
     * to join has them, which settings_rank names; "": nobody told any, UINT32_MAX: the master. */
    char interval[SOLO_NAME_MAX], outer[SOLO_NAME_MAX], codec[SOLO_NAME_MAX];
    uint32_t settings_rank;
    int64_t ahead_us; /* of this machine's clock is the master's, to within rtt_us */
};

/* Asks the master at url for its status within timeout_ms, without joining; job_id NULL or "":
 * whichever job it serves. 0 with reach == SOLO_REACHED, or an error with *out->reach saying which
 * kind. */
int solo_status_get(const char *url, const char *job_id, const char *token, uint32_t timeout_ms,
                    struct solo_status *out);

/* ---- addresses, for the launcher ----------------------------------------------------- */

struct solo_url {
    char host[SOLO_NAME_MAX];
    uint16_t port;
};
/* Parses tcp://HOST:PORT, HOST[:PORT], [v6]:PORT. SOLO_EINVAL with a text on how to write
 * it. The port is SOLO_PORT_DEFAULT if absent. */
int solo_url_parse(const char *text, struct solo_url *out);

/* The numeric source address of the route to host:port (no packet is sent). */
int solo_route_address(const struct solo_url *to, char *out, size_t size);
int solo_is_loopback(const char *numeric_address); /* 1 or 0 */

/* The first numeric address of the host, waited for at most timeout_ms. SOLO_ENOENT: no such
 * name; SOLO_ETIMEDOUT: the name server does not answer. */
int solo_resolve(const struct solo_url *url, uint32_t timeout_ms, char *numeric, size_t size);

/* Who listens on this TCP port here: "pid 4711 (python3 train.py)"; "" if it cannot be read. */
void solo_port_holder(uint16_t port, char *out, size_t size);

/* The one spelling of an outer rule, which nodes compare; NULL or "": avg. SOLO_EINVAL: the text
 * says how a rule is written. */
int solo_outer_text(const char *rule, char *out, size_t size);

#ifdef __cplusplus
}
#endif
#endif
