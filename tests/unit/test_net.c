#include "check.h"
#include "comm/net.h"

TEST(the_sockets_of_a_group_are_bounded_however_many_ranks_it_has)
{
    CHECK_EQ(net_streams_max(2), LINK_STREAMS_MAX);
    CHECK_EQ(net_streams_max(5), LINK_STREAMS_MAX);
    CHECK_EQ(net_streams_max(256), 4);
    CHECK_EQ(net_streams_max(SOLO_WORLD_MAX), 1);
    for (uint32_t world = 2; world <= SOLO_WORLD_MAX; world++) {
        CHECK((world - 1) * net_streams_max(world) <= NET_SOCKETS_MAX);
    }
}
