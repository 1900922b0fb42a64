/* master_parts.h - what the files of the master's machine share; for master*.c alone.
 *
 * master.c          events, leases, what is sent to whom
 * master_join.c     who may come in, who goes, catch-up
 * master_settle.c   after a start: found a job, or take up the one that the members know
 * master_list.c     the member list and its epochs
 * master_round.c    ready, begin, done, summon
 * master_verdict.c  commit, abort, blame */
#ifndef SOLO_PROTOCOL_MASTER_PARTS_H
#define SOLO_PROTOCOL_MASTER_PARTS_H

#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "protocol/master.h"

enum owed { /* in the order in which they are sent */
            OWE_ADMIT = 1,
            OWE_DOUBT_COMMIT =
                2, /* of the attempt in node.doubt, which this connection was told of */
            OWE_DOUBT_ABORT = 4,
            OWE_VERDICT = 8,
            OWE_MEMBERS = 16,
            OWE_CATCHUP = 32,
            OWE_SUMMON = 64,
            OWE_BEGIN = 128,
            OWE_END = 256,
};

#define EACH_NODE(master, it)                                                                      \
    for (struct node *it = (master)->nodes, *it##_end = it + (master)->node_count; it < it##_end;  \
         it++)                                                                                     \
        if (it->used)

/* ---- master.c */
struct msg *master_send(struct master_out *out, uint32_t conn, enum frame_type type);
void master_close(struct master_out *out, uint32_t conn);
struct event *master_event_add(struct master_out *out, enum event_kind kind, uint32_t rank);
void master_set_phase(struct master *master, enum master_phase phase);
struct node *master_node_of_conn(struct master *master, uint32_t conn);
struct node *master_node_of_rank(struct master *master, uint32_t rank);
void master_end(struct master *master, int rc, const char *text, struct master_out *out);
uint64_t master_transfer_us(const struct master *master, uint64_t bytes);

/* ---- master_join.c */
void join_message(struct master *master, uint32_t conn, const struct msg_join *join,
                  struct master_out *out);
void join_caught_up(struct master *master, struct node *node, const struct msg_caught_up *told,
                    struct master_out *out);
/* The node is gone: goodbye (LEAVE; rc 0: finished), or lost. Its connection is closed by the
 * caller. */
void join_gone(struct master *master, struct node *node, bool goodbye, int rc, const char *why,
               struct master_out *out);
/* By the master's decision; for SOLO_ETIMEDOUT, its silence, there is no penalty. */
void join_drop(struct master *master, struct node *node, int rc, const char *why,
               struct master_out *out);
void join_admit(struct master *master, struct master_out *out); /* joiners start to catch up */
void join_order(struct master *master, struct node *node, struct msg_catchup *order);
bool join_over(struct master *master); /* the founders have finished */

/* ---- master_settle.c */
/* Microseconds of a clock: no two masters share them. An incarnation is raised by up to so many. */
#define MASTER_INCARNATION_SPREAD (1u << 20)
#define MASTER_INCARNATION_MAX    (UINT64_MAX - MASTER_INCARNATION_SPREAD) /* that can be raised */
void settle_step(struct master *master, struct master_out *out);
void settle_again(struct master *master); /* nobody who holds the anchor is left */
void settle_goodbye(struct master *master, uint32_t rank);
void settle_report(struct master *master, const struct msg_join *join);
void settle_wake(const struct master *master, struct master_out *out);

/* ---- master_list.c */
void list_add(struct master *master, struct node *node, struct master_out *out);
void list_remove(struct master *master, struct node *node);
void list_confirm(struct master *master, struct master_out *out); /* the anchor's digest */
void list_send(struct master *master, struct master_out *out);    /* a new epoch, when it is due */

/* ---- master_round.c */
void rounds_ready(struct master *master, struct node *node, const struct msg_ready *ready);
void rounds_done(struct master *master, struct node *node, const struct msg_done *done,
                 struct master_out *out);
void rounds_step(struct master *master, struct master_out *out);
void rounds_wake(const struct master *master, struct master_out *out);

/* ---- master_verdict.c */
void verdict_commit(struct master *master, struct master_out *out);
/* account: the rank on whose account it fails, or EVENT_NOBODY. */
void verdict_abort(struct master *master, uint32_t account, const char *why,
                   struct master_out *out);
void verdict_fault(struct master *master, struct node *node, const struct msg_fault *fault,
                   struct master_out *out);
void verdict_blame(struct master *master, struct master_out *out); /* drops the worst, if any */

#endif
