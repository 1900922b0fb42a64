/* board.h - what the ranks of one host share: one segment of memory with a desk and two
 * windows for each rank, and tubes for messages between each two.
 *
 * One rank, the lowest, makes the segment and hands it to the others over an abstract socket
 * whose name was on its card; it has no name in any file system and ends with its last user.
 *
 * Layout: head | desk of each rank | lengths of each rank | tubes | windows of each rank.
 * Every part begins on a page, so that each is taken by who first touches it.
 *
 * Threads: opening and closing by one thread; the rest as each field says. */
#ifndef SOLO_COMM_BOARD_H
#define SOLO_COMM_BOARD_H

#include "comm/card.h"
#include "comm/line.h"
#include "comm/op.h"
#include "os/pulse.h"
#include "os/shm.h"

#define BOARD_SLOT_BYTES (512u << 10) /* one window; two a rank: both stay in the caches */
#define BOARD_TUBE_BYTES (132u << 10) /* messages on their way from one rank to one other */

/* Why the group broke, as the first rank that noticed wrote it. */
struct board_fault {
    _Atomic uint32_t state; /* 0: none; 1: being written; 2: to be read */
    int32_t rc;
    uint32_t rank;
    char text[SOLO_TEXT_MAX];
};

struct board_desk {
    struct pulse pulse;
    struct line ready;          /* windows filled */
    struct line done;           /* windows of others read */
    struct line bell;           /* rung when one of the tubes to this rank, or from it, has moved */
    struct op_header header[2]; /* of the latest two collectives of this board, in turn */
    _Atomic uint64_t sequence;  /* the collective it is in, or was in last */
    _Atomic int32_t core;       /* where it waited last, and 1; 0: not known */
    char host[CARD_HOST_MAX];   /* for messages: host name and process id */
};

struct board {
    struct shm shm;
    uint32_t rank, ranks;   /* among the ranks of this host */
    const uint32_t *global; /* [ranks]: their ranks in the group; borrowed */
    struct board_fault *fault;
    struct board_desk *desks;
    uint8_t *lengths, *tubes, *windows;
    size_t desk_stride, lengths_stride;
    uint32_t slot_bytes;
    uint32_t ready, done; /* what our two lines say */
    uint32_t turns;       /* collectives done here: which header and lengths are in use */
    uint32_t spin_us;
    uint64_t moved_us; /* when this rank left a core that it shared with another */
    uint32_t apart_us; /* not again for so long */
};

struct board_config {
    uint32_t rank, ranks;
    const uint32_t *global;
    const char *meeting; /* name of the maker's socket */
    int listen_fd;       /* on the maker: its listening socket, borrowed; -1 elsewhere */
    const char *token;   /* CARD_SECRET_BYTES in hex that all ranks of the group know */
    const char *host;
    uint64_t deadline_us;
};

/* Makes or receives the segment. SOLO_ETIMEDOUT names the ranks that did not come. */
int board_open(const struct board_config *config, struct board *board);
void board_leave(struct board *board); /* in good order; the memory stays until board_close */
void board_close(struct board *board); /* of a zeroed one: nothing */

size_t board_bytes(uint32_t ranks);

static inline struct board_desk *board_desk(const struct board *board, uint32_t rank)
{
    return (struct board_desk *)(void *)((uint8_t *)board->desks + rank * board->desk_stride);
}

/* Two tables a rank, used in turn: elements for each rank of this host, then
 * elements wanted of each. */
static inline uint64_t *board_lengths(const struct board *board, uint32_t rank)
{
    uint8_t *at = board->lengths + (2 * rank + (board->turns & 1)) * board->lengths_stride;
    return (uint64_t *)(void *)at;
}

static inline uint8_t *board_slot(const struct board *board, uint32_t rank, uint32_t step)
{
    return board->windows + (2 * (size_t)rank + (step & 1)) * board->slot_bytes;
}

/* Breaks the group for every rank of this host, unless it is broken. The texts are whole. */
void board_break(struct board *board, int rc, const char *text);

/* 0, or the code with the text of who broke it as this thread's error text. */
int board_broken(const struct board *board);

/* 0, or SOLO_ECLOSED: this rank is gone; the text names it. Ask only of a rank that is waited
 * for: one that has given all it had may go. */
int board_alive(const struct board *board, uint32_t rank);
bool board_has_died(const struct board *board, uint32_t rank); /* not left in good order */

#endif
