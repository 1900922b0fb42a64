/* file.h - regular files read at given places, past the page cache where asked, and memory to
 * read them into. The functions of solo_ckpt.h on solo_file and solo_arena are here too.
 *
 * Any thread; one solo_file may be read by several at once. */
#ifndef SOLO_OS_FILE_H
#define SOLO_OS_FILE_H

#include <stdbool.h>
#include <sys/uio.h>

#include "base/err.h"
#include "solo_ckpt.h"

#define FILE_BLOCK_BYTES 4096u /* what direct reads are aligned to */

struct solo_file {
    int fd;
    int direct_fd;              /* -1: not open, or not possible here */
    char path[512];             /* for messages, perhaps cut */
    struct solo_file_info info; /* as of opening */
};

/* Reads all of the vectors from offset on, EIO and ESTALE retried a few times. Changes the
 * vectors. SOLO_ECORRUPT: the file ends before. */
int file_read_vectors(const struct solo_file *file, uint64_t offset, struct iovec *vectors,
                      int count);

/* Past the page cache: offset, size and address are multiples of FILE_BLOCK_BYTES. Gives the
 * bytes read, fewer than `size` only at the file's end. */
int file_read_direct(const struct solo_file *file, uint64_t offset, void *to, size_t size,
                     size_t *read_out);

/* Whether direct reads work on this file; opens it a second time. */
bool file_direct_open(struct solo_file *file);

/* SOLO_ECORRUPT if size or time are no longer those of opening. */
int file_unchanged(const struct solo_file *file);

#endif
