/* group.h - a group's own state; what solo_group.h promises is done in meet.c (opening), group.c
 * (breaking, closing), queue.c (collectives in order), mail.c (messages).
 *
 * Threads: `queue` and `fault` are guarded by `mutex`; collectives are done by whoever holds
 * `busy`. The group is freed by who gives the last reference: its owner or its threads. */
#ifndef SOLO_COMM_GROUP_H
#define SOLO_COMM_GROUP_H

#include "comm/board.h"
#include "comm/card.h"
#include "comm/net.h"
#include "os/thread.h"
#include "solo_group.h"

#define GROUP_NAME_MAX   64u
#define GROUP_TIMEOUT_MS (30u * 60 * 1000)
#define GROUP_QUEUED_MAX 65536u /* collectives that wait */

struct job; /* one posted call */
struct span_pair;
struct mail;

struct solo_group {
    uint32_t rank, world;
    char name[GROUP_NAME_MAX];
    uint32_t fork_count; /* of this process when the group was prepared */
    _Atomic uint32_t timeout_ms;
    _Atomic uint32_t references;
    struct op_abort abort;
    _Atomic uint64_t sequence;
    bool connected;

    /* meeting */
    struct card card;                      /* our own */
    char token[2 * CARD_SECRET_BYTES + 1]; /* rank 0's secret */
    int meeting_fd, listen_fd;

    /* who is where */
    struct board board; /* the ranks of this host; none if it is alone */
    uint32_t *locals;   /* their ranks in the group, ascending */
    uint32_t local_count, hosts;
    struct net *net; /* all ranks, if some are on other hosts */
    struct span_pair *span;
    uint32_t *everyone; /* 0, 1, ... */
    uint32_t *across;   /* the ranks with our place on their host, one of each host; NULL: hosts
                           differ in size */
    uint32_t host;      /* our place in `across` */
    uint32_t *places, *hosts_of; /* of every rank: its place on its host, and that host */
    uint8_t *sums;               /* mixed.c: what is not rounded yet; owned by who holds `busy` */
    size_t sums_bytes;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct job *first, *last;
    struct job *ahead, *ahead_last; /* their operations have begun; the next to be run */
    bool looks_ahead;               /* what is under way is the last operation of a posted call */
    uint32_t queued, ahead_count;
    bool busy, has_worker, closing;
    struct thread worker;
    int fault_rc;
    char fault_text[SOLO_TEXT_MAX];

    struct mail *mail;
    uint64_t barriers, barriers_at; /* monitored ones since collective number barriers_at */
};

/* 0; or why the group cannot be used (forked, not connected, broken), as this thread's text. */
int group_usable(struct solo_group *group);

/* The first fault is kept. Returns the code that later calls will get. */
int group_break(struct solo_group *group, int rc, const char *text);

/* Tells the other ranks, of this host and of others, of this thread's error, which it returns. */
int group_tell(struct solo_group *group, int rc);
/* Whether others refused what this rank has sent in calls that are over: 0, or as group_usable. */
int group_listen(struct solo_group *group);

uint64_t group_deadline(const struct solo_group *group, uint32_t timeout_ms);
void group_hold(struct solo_group *group);
void group_release(struct solo_group *group);

bool group_forked(const struct solo_group *group);
uint32_t group_fork_count(void); /* of this process */

/* mixed.c: a collective of a group that spans hosts. */
int mixed_run(struct solo_group *group, const struct solo_op *op, uint64_t sequence,
              uint64_t deadline_us);

/* queue.c: one operation now, on this thread, which holds `busy`. */
int group_execute(struct solo_group *group, const struct solo_op *op, uint64_t deadline_us);
/* queue.c: the operation behind the one under way and those begun ahead, if it is there and touches
 * none of their memory; NULL: none. As span_call.ahead. */
const struct solo_op *group_look_ahead(void *group, const struct solo_op *now, uint32_t place);
/* queue.c: fails all that waits. */
void group_drop_jobs(struct solo_group *group, int rc, const char *text);

#endif
