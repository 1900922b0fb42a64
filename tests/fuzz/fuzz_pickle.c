/* The judge of pickles, on a bare pickle and (by their magic) on torch's legacy format. */
#include "ckpt_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct solo_ckpt_options bare = {.size = sizeof bare, .pickle_only = 1, .placeholders = 1};
    fuzz_open(bytes, size, &bare);
    fuzz_open(bytes, size, NULL);
    return 0;
}
