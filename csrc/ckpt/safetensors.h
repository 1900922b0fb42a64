/* safetensors.h - the header of a safetensors file to tables, by the format's strict rules.
 *
 * Pure: the caller reads the bytes and keeps them while the tables are used. */
#ifndef SOLO_CKPT_SAFETENSORS_H
#define SOLO_CKPT_SAFETENSORS_H

#include "ckpt/faults.h"
#include "ckpt/grow.h"
#include "ckpt/scan.h"

#define SAFETENSORS_HEADER_MAX 100000000u

struct safetensors {
    struct grown storages; /* struct solo_ckpt_storage, one for each tensor, by offset */
    struct grown tensors;  /* struct solo_ckpt_tensor */
    struct grown shapes;   /* uint64_t: sizes, then strides */
    struct grown names;    /* struct solo_ckpt_name */
    struct grown texts;    /* char */
    const char *note;      /* the text of __metadata__, an object; NULL: none */
    size_t note_bytes;
};

/* header: the JSON, size bytes, which begins at byte 8 of the file. */
int safetensors_parse(const uint8_t *header, size_t size, uint64_t file_bytes,
                      const struct solo_ckpt_options *options, struct safetensors *out,
                      struct faults *faults);
void safetensors_free(struct safetensors *safetensors);

#endif
