/* solo_group.h - collectives of a fixed world: what a c10d backend needs, without torch.
 *
 * Opening takes two steps, because only the caller has a store: solo_group_prepare gives a
 * card (text) that says where this rank can be met; the caller brings every rank's card to
 * every rank; solo_group_connect takes them all.
 *
 * Threads: any. Collectives of one group run one after the other, in the order they were
 * given; messages (send, receive) run beside them. Every wait has a deadline. Whatever breaks
 * a group (a rank died, a deadline passed, two ranks do different things) breaks it for all
 * its ranks and for all later calls, with one text that says who and why. */
#ifndef SOLO_GROUP_H
#define SOLO_GROUP_H

#include "solo.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOLO_WORLD_MAX 1024u
#define SOLO_CARD_MAX  1024u /* bytes of a card with its final zero */

enum solo_op_kind {
    SOLO_OP_BARRIER,
    SOLO_OP_BROADCAST,
    SOLO_OP_ALLREDUCE,
    SOLO_OP_REDUCE,
    SOLO_OP_ALLGATHER,
    SOLO_OP_GATHER,
    SOLO_OP_SCATTER,
    SOLO_OP_REDUCE_SCATTER,
    SOLO_OP_ALLTOALL,
    SOLO_OP_KIND_COUNT,
};

enum solo_reduce {
    SOLO_REDUCE_SUM,
    SOLO_REDUCE_AVG,
    SOLO_REDUCE_PRODUCT,
    SOLO_REDUCE_MIN,
    SOLO_REDUCE_MAX,
    SOLO_REDUCE_BAND,
    SOLO_REDUCE_BOR,
    SOLO_REDUCE_BXOR,
    SOLO_REDUCE_PREMUL, /* sum of factor * value; floats and complex only */
    SOLO_REDUCE_COUNT,
};

const char *solo_op_name(enum solo_op_kind kind); /* as torch writes it: "all_reduce" */

struct solo_part {
    void *bytes;
    uint64_t count; /* elements, contiguous */
};

/* Parts that a kind takes:
 *                    in                       out
 *   BARRIER          -                        -
 *   BROADCAST        -                        1 (read on the root, written elsewhere)
 *   ALLREDUCE        1                        1, as long
 *   REDUCE           1                        1 on the root, as long
 *   ALLGATHER        1                        world; lengths may differ
 *   GATHER           1                        world on the root
 *   SCATTER          world on the root        1
 *   REDUCE_SCATTER   world; lengths may differ  1
 *   ALLTOALL         world; lengths may differ  world; lengths may differ
 * out may be the very memory of in (ALLREDUCE, REDUCE; the rank's own part of the others). */
struct solo_op {
    enum solo_op_kind kind;
    enum solo_dtype dtype;
    enum solo_reduce reduce; /* ALLREDUCE, REDUCE, REDUCE_SCATTER */
    double factor;           /* SOLO_REDUCE_PREMUL */
    uint32_t root;           /* BROADCAST, REDUCE, GATHER, SCATTER */
    const struct solo_part *in, *out;
    uint32_t in_count, out_count;
};

struct solo_group_config {
    size_t size;
    uint32_t rank, world;
    uint32_t timeout_ms; /* of calls that name none; 0: 30 minutes */
    const char *name;    /* for messages; NULL: "group" */
    const char
        *store_host; /* a host that all ranks reach: the route to it is our address; NULL: none */
    const char *host_id;   /* ranks with equal ones share memory; NULL: the kernel's own */
    const char *interface; /* names, addresses or ^exclusions, comma-separated; NULL: by route */
};

struct solo_group;

/* Gives *out: solo_group_close; waits for nothing. Writes this rank's card. */
int solo_group_prepare(const struct solo_group_config *config, struct solo_group **out,
                       char card_out[SOLO_CARD_MAX]);

/* Before connecting, where the card was made before its rank was known. */
int solo_group_place(struct solo_group *group, uint32_t rank, uint32_t world);

/* Meets the other ranks; cards[rank] for each, borrowed during the call. Waits for all of them,
 * at most timeout_ms (0: the group's): SOLO_ETIMEDOUT names those that did not come. */
int solo_group_connect(struct solo_group *group, const char *const *cards, uint32_t timeout_ms);

/* Does the operations one after the other on the calling thread, after all that was posted
 * before. Borrows all parts until it returns. Arguments are checked before anything moves. */
int solo_group_run(struct solo_group *group, const struct solo_op *ops, uint32_t count,
                   uint32_t timeout_ms);

/* The outcome of a posted call: 0, or an error and its text. `source`: the rank a message came
 * from. Once, with no lock held, on a thread of the group, or on one that sends, receives or helps:
 * of a message that could go at once, before solo_group_send returns. May call the group again and wait
 * for a collective that it posts; who waits in it for another message holds up all of them. */
typedef void (*solo_done_fn)(void *context, int rc, const char *text, uint32_t source);

/* The same on the group's own thread. Copies ops and part lists, borrows the memory of parts
 * until `done`. An error: nothing was begun, and `done` is not called. */
int solo_group_post(struct solo_group *group, const struct solo_op *ops, uint32_t count,
                    uint32_t timeout_ms, solo_done_fn done, void *context);

/* Gives the next operations of a call, borrowed until it is asked again; a count of 0: no more.
 * Negative: it cannot, and the group breaks, since others count on them. */
typedef int (*solo_steps_fn)(void *context, const struct solo_op **ops_out, uint32_t *count_out);

/* As solo_group_post, for a call whose later operations depend on what the first ones bring:
 * `steps` is asked on the group's own thread, and nothing comes between its operations. */
int solo_group_post_steps(struct solo_group *group, solo_steps_fn steps, uint32_t timeout_ms,
                          solo_done_fn done, void *context);

#define SOLO_ANY_SOURCE UINT32_MAX

/* Messages between two ranks, matched by (source, tag) in the order sent. A message longer
 * than the room given is an error on both sides; shorter ones too. */
int solo_group_send(struct solo_group *group, uint32_t to, uint64_t tag, const void *bytes,
                    uint64_t size, uint32_t timeout_ms, solo_done_fn done, void *context);
int solo_group_receive(struct solo_group *group, uint32_t from, uint64_t tag, void *bytes,
                       uint64_t size, uint32_t timeout_ms, solo_done_fn done, void *context);

/* Moves messages on the calling thread until over(context) is not 0 or none is left to move; at once
 * nothing if another thread helps already. Who waits for his own message so wakes no thread. `done`
 * of any message may be called on this thread; `over` is asked often, and must not call the group.
 * Every message has a deadline, so this ends. */
void solo_group_help(struct solo_group *group, int (*over)(void *context), void *context);

/* A barrier that says who did not come: without wait_all the first one missing, else all.
 * Must be the only thing the group does. */
int solo_group_monitored_barrier(struct solo_group *group, uint32_t timeout_ms, int wait_all);

void solo_group_set_timeout(struct solo_group *group, uint32_t timeout_ms);

/* 0, or what broke the group; the text is this thread's error text. */
int solo_group_health(struct solo_group *group);

/* Waits for what was posted and sent: 0, or SOLO_ETIMEDOUT. SOLO_EMISMATCH: another rank has refused
 * what this one sent in a call that was over by then (see docs/backend.md), and no call has told it. */
int solo_group_shutdown(struct solo_group *group, uint32_t timeout_ms);

/* Breaks the group: every waiting and later call, here and on the other ranks, fails with
 * SOLO_EABORTED. Any thread, never blocks. */
void solo_group_abort(struct solo_group *group, const char *why);

/* Ends the group; what is still posted fails. Never waits for a thread, so it may be called
 * from `done`. In a forked child it only forgets. NULL is allowed. */
void solo_group_close(struct solo_group *group);

struct solo_group_figures {
    size_t size;
    uint64_t shared_bytes;  /* of the segment, taken page by page when first touched */
    uint64_t staging_bytes; /* held for messages nobody asked for yet, and for streams */
    uint32_t local_ranks;   /* on this host, this one included */
    uint32_t hosts;
    uint32_t connections; /* TCP, open now */
};
void solo_group_stats(struct solo_group *group, struct solo_group_figures *out);

#ifdef __cplusplus
}
#endif
#endif
