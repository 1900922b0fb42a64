/* A file of torch.save: zip directory, local headers, the pickle inside, the join of the two. */
#include "ckpt_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_open(bytes, size, NULL);
    struct solo_ckpt_options placeholders = {
        .size = sizeof placeholders, .placeholders = 1, .allow_expanded = 1};
    fuzz_open(bytes, size, &placeholders);
    placeholders.constants = 1;
    fuzz_open(bytes, size, &placeholders);
    return 0;
}
