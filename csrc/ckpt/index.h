/* index.h - struct solo_ckpt: the tables of one file, whatever its format. */
#ifndef SOLO_CKPT_INDEX_H
#define SOLO_CKPT_INDEX_H

#include "ckpt/pickle.h"
#include "ckpt/safetensors.h"
#include "ckpt/zip.h"

#define INDEX_HEAD_BYTES 4096u

struct solo_ckpt {
    struct solo_ckpt_info info;
    struct solo_ckpt_options options;
    struct solo_ckpt_source source; /* used only while opening */
    struct faults faults;
    uint8_t *head; /* only while opening */
    size_t head_bytes;
    uint8_t *directory, *metadata; /* owned; directory may point into metadata's neighbour */
    size_t directory_bytes, metadata_bytes;
    struct zip zip;
    struct pickle pickle;
    struct safetensors safetensors;
    bool has_pickle;
    uint64_t inflated_bytes; /* of compressed records, together */
};

/* One for each container; faults are kept, errors are those of solo_ckpt_open. */
int index_zip(struct solo_ckpt *ckpt);
int index_legacy(struct solo_ckpt *ckpt);
int index_pickle(struct solo_ckpt *ckpt);
int index_safetensors(struct solo_ckpt *ckpt);

int index_bytes(struct solo_ckpt *ckpt, uint64_t offset, void *bytes, size_t size);

/* Reads a range of the source into new memory, at most metadata_max bytes. */
int index_read(struct solo_ckpt *ckpt, uint64_t offset, uint64_t bytes, const char *what,
               uint8_t **out);

#endif
