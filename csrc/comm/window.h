/* window.h - collectives of the ranks of one host, through the windows of a board.
 *
 * Every rank counts the same steps: in a step it fills one of its two windows, waits until
 * those it reads from have filled theirs, reads, and says so. A window is filled again when
 * everybody has said so. So a rank can be one step ahead of the slowest, and copying in
 * overlaps with others' copying out.
 *
 * Threads: one at a time. Ranks here are those of the board. */
#ifndef SOLO_COMM_WINDOW_H
#define SOLO_COMM_WINDOW_H

#include "comm/board.h"
#include "comm/op.h"

/* window_meet: shows the others what this rank is about to do elsewhere, and sees that they do the
 * same. window_run: does a collective whose arguments passed op_check. Any error has broken the board. */
int window_meet(struct board *board, const struct solo_op *op, uint64_t sequence,
                uint64_t deadline_us, const struct op_abort *abort);
int window_run(struct board *board, const struct solo_op *op, uint64_t sequence,
               uint64_t deadline_us, const struct op_abort *abort);

#endif
