/* A safetensors file: the length, the JSON header, the ranges. */
#include "ckpt_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct solo_ckpt_options trailing = {.size = sizeof trailing, .allow_trailing = 1};
    fuzz_open(bytes, size, NULL);
    fuzz_open(bytes, size, &trailing);
    return 0;
}
