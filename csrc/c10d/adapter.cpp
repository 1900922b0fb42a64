// adapter.cpp - placeholder of the build: the c10d adapter of libsolo begins here.
#include <torch/headeronly/version.h>

#include "solo.h"

extern "C" __attribute__((visibility("default"))) int solo_c10d_torch_minor()
{
    return TORCH_VERSION_MINOR;
}
