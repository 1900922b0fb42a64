/* window_inside.h - what the files of window share: window.c (one exchange, and which way),
 * window_phases.c (all_reduce by slices), window_wait.c (waiting, comparing). */
#ifndef SOLO_COMM_WINDOW_INSIDE_H
#define SOLO_COMM_WINDOW_INSIDE_H

#include "comm/window.h"

struct window_wait {
    struct board *board;
    struct op_header header; /* of the collective, for comparison and messages */
    uint64_t begun_us, deadline_us;
    const struct op_abort *abort;
    uint32_t rank; /* who is waited for now */
};

/* Waits for one rank's windows, or until all others have read that many. An error names who was
 * waited for. */
int window_wait_ready(struct window_wait *wait, uint32_t rank, uint32_t value);
int window_wait_done(struct window_wait *wait, uint32_t value);
void window_say_ready(struct board *board, uint32_t value);
void window_say_done(struct board *board, uint32_t value);

/* Shows the others what this rank does, once the window before the last is free. */
void window_introduce(struct window_wait *wait);
const struct op_header *window_header(const struct window_wait *wait, uint32_t rank);

/* SOLO_EMISMATCH with both values. */
int window_differ(const struct window_wait *wait, uint32_t rank, const struct op_header *theirs);
int window_differ_in_length(const struct window_wait *wait, uint32_t from, uint32_t to,
                            uint64_t sent, uint64_t wanted);

int window_two_phase(const struct window_wait *wait, const struct solo_op *op,
                     const struct reduce *reduce);

#endif
