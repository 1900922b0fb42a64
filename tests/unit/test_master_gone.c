/* What the members are told of those who went. */
#include "master_kit.h"

TEST(the_others_are_told_once_why_a_node_went)
{
    job(4);
    feed((struct master_event){.type = MASTER_CLOSED, .conn = 1, .text = "reset"});
    tick(MASTER_GATHER_US);
    CHECK_EQ(last_members.gone_count, 1);
    CHECK_HAS(last_members.gone[0].text, "reset");
    CHECK(!last_members.gone[0].goodbye);
    say(2, (struct msg){.type = FRAME_LEAVE, .as.leave = {.finished = true, .text = "finished"}});
    tick(MASTER_GATHER_US);
    CHECK_EQ(last_members.gone_count, 1);
    CHECK_EQ(last_members.gone[0].node_rank, 2);
    CHECK_STR(last_members.gone[0].text, "finished");
    CHECK(last_members.gone[0].goodbye);
}
