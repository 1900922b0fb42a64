#include "check.h"
#include "comm/apart.h"
#include "os/core.h"

static struct board_desk desks[2];

static struct board board_of(uint32_t rank)
{
    memset(desks, 0, sizeof desks);
    return (struct board){.rank = rank, .ranks = 2, .desks = desks, .desk_stride = sizeof desks[0]};
}

/* As if the other rank waited on this thread's core, whichever that is at the moment. */
static void share_core(struct board *board, uint32_t other)
{
    atomic_store(&desks[other].core, core_here() + 1);
    apart_keep(board, other);
}

TEST(of_two_ranks_on_one_core_the_higher_one_moves_and_not_again_at_once)
{
    struct board board = board_of(1);
    while (!board.moved_us) {
        share_core(&board, 0);
    }
    CHECK_EQ(board.apart_us, APART_US);
    uint64_t moved_us = board.moved_us;
    while (board.moved_us == moved_us) { /* the move did not hold */
        share_core(&board, 0);
    }
    CHECK(board.moved_us - moved_us >= APART_US);
}

TEST(the_lower_rank_stays_where_it_is)
{
    struct board board = board_of(0);
    for (int i = 0; i < 100; i++) {
        share_core(&board, 1);
    }
    CHECK_EQ(board.moved_us, 0);
    CHECK(atomic_load(&desks[0].core) > 0);
}

TEST(ranks_on_cores_of_their_own_stay)
{
    struct board board = board_of(1);
    for (int i = 0; i < 100; i++) {
        atomic_store(&desks[0].core, core_here() + 1000);
        apart_keep(&board, 0);
    }
    CHECK_EQ(board.moved_us, 0);
}
