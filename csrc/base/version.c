#include "solo.h"

const char *solo_version(void)
{
    return SOLO_VERSION;
}

uint32_t solo_abi_version(void)
{
    return SOLO_ABI_VERSION;
}
