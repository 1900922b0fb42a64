#include "check.h"
#include "os/nic.h"

TEST(an_interface_is_chosen_by_name_beginning_or_address)
{
    char out[64];
    CHECK_EQ(nic_address("lo", out, sizeof out), 0);
    CHECK_STR(out, "127.0.0.1");
    CHECK_EQ(nic_address("nonesuch0,127.0.0.1", out, sizeof out), 0);
    CHECK_STR(out, "127.0.0.1");
}

TEST(a_choice_that_nothing_fits_lists_what_there_is)
{
    char out[64];
    CHECK_EQ(nic_address("nonesuch0", out, sizeof out), SOLO_ENOENT);
    CHECK_HAS(solo_error_text(), "lo (127.0.0.1)");
}
