/* zip.h - the directory of a zip archive, strictly: what two readers could read differently
 * is a fault. Only the central directory is believed; local headers are compared with it.
 *
 * Pure: the caller reads the bytes. Memory: borrows the directory's bytes while it is used. */
#ifndef SOLO_CKPT_ZIP_H
#define SOLO_CKPT_ZIP_H

#include <stdbool.h>

#include "ckpt/faults.h"

#define ZIP_TAIL_BYTES  (22u + 65535u + 20u + 56u) /* enough for the end records */
#define ZIP_LOCAL_BYTES 30u                        /* of a local header without its name */
#define ZIP_RECORDS_MAX 4000000u

struct zip_end {
    uint64_t directory_offset, directory_bytes, count;
};

struct zip_place { /* what solo_ckpt_record leaves out */
    const char *full_name;
    uint32_t full_bytes;
    uint16_t flags;
    uint64_t end; /* where the next header, or the directory, begins */
};

struct zip_name {
    uint64_t mark; /* of the name: other marks, other names */
    const struct solo_ckpt_record *record;
};

struct zip {
    struct solo_ckpt_record *records; /* in the order of their headers */
    struct zip_place *places;
    struct zip_name *by_name; /* sorted by mark, then by name, case folded */
    size_t count;
    const char *top; /* the archive's top directory, without '/' */
    size_t top_bytes;
};

/* Finds the end records in the last tail_size bytes of the file. */
int zip_find_end(const uint8_t *tail, size_t tail_size, uint64_t file_size, struct zip_end *out,
                 struct faults *faults);

/* Parses the directory's bytes, all of them. A record whose data offset cannot be told from
 * its neighbours has offset SOLO_CKPT_NONE until zip_local_apply. Error: only ENOMEM; what is
 * wrong with the archive is in faults. */
int zip_parse(const uint8_t *bytes, size_t size, const struct zip_end *end, struct zip *out,
              struct faults *faults);
void zip_free(struct zip *zip);

const struct solo_ckpt_record *zip_find(const struct zip *zip, const char *name, size_t size);

/* Compares a local header, given from the record's header_offset on, with the directory. */
int zip_local_check(const struct zip *zip, size_t index, const uint8_t *local, size_t size);

/* The same, and takes the data offset from it. */
int zip_local_apply(struct zip *zip, size_t index, const uint8_t *local, size_t size,
                    struct faults *faults);

#endif
