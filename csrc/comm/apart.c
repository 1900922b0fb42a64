/* Two that answer each other in microseconds look to the kernel like one that computes: a rank that
 * was woken on the other's core stays there while short calls are repeated, and the two run by turns
 * beside an idle core. */
#include "comm/apart.h"

#include "os/clock.h"
#include "os/core.h"

static int32_t core_of(const struct board *board, uint32_t rank)
{
    return atomic_load_explicit(&board_desk(board, rank)->core, memory_order_relaxed) - 1;
}

/* Written only when it changes: the others read it. */
static void say_core(struct board *board, int32_t core)
{
    if (core_of(board, board->rank) != core) {
        atomic_store_explicit(&board_desk(board, board->rank)->core, core + 1,
                              memory_order_relaxed);
    }
}

void apart_keep(struct board *board, uint32_t rank)
{
    int32_t here = core_here();
    say_core(board, here);
    if (here < 0 || rank > board->rank || core_of(board, rank) != here) {
        return;
    }
    uint64_t now_us = clock_us();
    if (now_us - board->moved_us < board->apart_us) {
        return;
    }
    int32_t cores[SOLO_WORLD_MAX];
    for (uint32_t i = 0; i < board->ranks; i++) {
        cores[i] = core_of(board, i);
    }
    bool held = now_us - board->moved_us > 2 * board->apart_us;
    uint32_t longer = 2 * board->apart_us < APART_US_MAX ? 2 * board->apart_us : APART_US_MAX;
    board->apart_us = held ? APART_US : longer;
    board->moved_us = now_us;
    (void)core_leave(cores, board->ranks); /* nowhere to go: stays */
}
