#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "comm/apart.h"
#include "comm/window_inside.h"
#include "os/clock.h"

/* A sleeper is often woken on its waker's core, and then the two share it: 25 us a turn instead
 * of 5 by yielding, or 1 on two cores. */
#define YIELD_US 100u

/* ---- waiting ---------------------------------------------------------------------------- */

static int too_late(const struct window_wait *wait, uint64_t now_us)
{
    const struct board *board = wait->board;
    char text[OP_TEXT_MAX], late[192] = "";
    size_t used = 0;
    op_text(&wait->header, text);
    for (uint32_t i = 0; i < board->ranks && used + 96 < sizeof late; i++) {
        const struct board_desk *desk = board_desk(board, i);
        uint64_t sequence = atomic_load(&desk->sequence);
        if (i == wait->rank || sequence < wait->header.sequence) {
            used +=
                (size_t)snprintf(late + used, sizeof late - used, "%srank %u (%s), at #%" PRIu64,
                                 used ? "; " : "", board->global[i], desk->host, sequence);
        }
    }
    return err_set(SOLO_ETIMEDOUT, "%s: Timed out after %.1f s waiting for %s", text,
                   (double)(now_us - wait->begun_us) / 1e6, late);
}

static int check(void *context, uint64_t now_us)
{
    const struct window_wait *wait = context;
    TRY(board_broken(wait->board));
    TRY(op_aborted(wait->abort));
    int rc = board_alive(wait->board, wait->rank);
    if (rc < 0) {
        char text[OP_TEXT_MAX], why[SOLO_TEXT_MAX];
        snprintf(why, sizeof why, "%s", err_text());
        op_text(&wait->header, text);
        return err_set(rc, "%s: %s", text, why);
    }
    return now_us > wait->deadline_us ? too_late(wait, now_us) : 0;
}

static int wait_for(struct window_wait *wait, struct line *line, uint32_t value)
{
    struct board *board = wait->board;
    if (line_reached(line, value)) {
        return 0;
    }
    if (board->spin_us) { /* as many cores as ranks */
        apart_keep(board, wait->rank);
    }
    struct line_watch watch = {check, wait, board->spin_us, YIELD_US};
    return line_wait(line, value, &watch);
}

int window_wait_ready(struct window_wait *wait, uint32_t rank, uint32_t value)
{
    wait->rank = rank;
    return wait_for(wait, &board_desk(wait->board, rank)->ready, value);
}

int window_wait_done(struct window_wait *wait, uint32_t value)
{
    struct board *board = wait->board;
    for (uint32_t i = 1; i < board->ranks; i++) {
        wait->rank = (board->rank + i) % board->ranks;
        TRY(wait_for(wait, &board_desk(board, wait->rank)->done, value));
    }
    return 0;
}

void window_say_ready(struct board *board, uint32_t value)
{
    board->ready = value;
    line_set(&board_desk(board, board->rank)->ready, value);
}

void window_say_done(struct board *board, uint32_t value)
{
    board->done = value;
    line_set(&board_desk(board, board->rank)->done, value);
}

/* ---- comparing ---------------------------------------------------------------------------- */

int window_differ(const struct window_wait *wait, uint32_t rank, const struct op_header *theirs)
{
    char mine_text[OP_TEXT_MAX], their_text[OP_TEXT_MAX];
    op_text(&wait->header, mine_text);
    op_text(theirs, their_text);
    const uint32_t *global = wait->board->global;
    return err_set(SOLO_EMISMATCH, "ranks do different things: rank %u calls %s, rank %u calls %s",
                   global[wait->board->rank], mine_text, global[rank], their_text);
}

int window_differ_in_length(const struct window_wait *wait, uint32_t from, uint32_t to,
                            uint64_t sent, uint64_t wanted)
{
    char text[OP_TEXT_MAX];
    op_text(&wait->header, text);
    const uint32_t *global = wait->board->global;
    return err_set(SOLO_EMISMATCH,
                   "%s: rank %u gives %" PRIu64 " elements, rank %u has room for %" PRIu64, text,
                   global[from], sent, global[to], wanted);
}

const struct op_header *window_header(const struct window_wait *wait, uint32_t rank)
{
    return &board_desk(wait->board, rank)->header[wait->board->turns & 1];
}

void window_introduce(struct window_wait *wait)
{
    struct board_desk *desk = board_desk(wait->board, wait->board->rank);
    desk->header[wait->board->turns & 1] = wait->header;
    atomic_store(&desk->sequence, wait->header.sequence);
}
