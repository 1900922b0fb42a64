/* The index of a sharded checkpoint: no file name may leave its directory. */
#include "ckpt_fuzz.h"

static int leaves(const char *name, size_t size)
{
    return size == 0 || name[0] == '/' || memchr(name, 0, size) != NULL ||
           (size >= 3 && memcmp(name, "../", 3) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct solo_ckpt_shards *shards;
    if (solo_ckpt_shards_open(bytes, size, &shards) < 0) {
        return 0;
    }
    const struct solo_ckpt_shard_name *names;
    size_t count = solo_ckpt_shards_names(shards, &names);
    for (size_t i = 0; i < count; i++) {
        const char *file;
        size_t length = solo_ckpt_shards_file(shards, names[i].file, &file);
        if (leaves(file, length)) {
            abort();
        }
    }
    solo_ckpt_shards_close(shards);
    return 0;
}
