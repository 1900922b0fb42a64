/* store.h - a file that is replaced whole or not at all, and reading it back.
 *
 * One thread per struct. The new content goes to a temporary file beside the old one; commit
 * makes it durable (fsync), renames it over, and makes the name durable. A process that dies
 * before leaves the old file as it was. */
#ifndef SOLO_OS_STORE_H
#define SOLO_OS_STORE_H

#include <stddef.h>
#include <stdint.h>

#define STORE_PATH_MAX 1024u

struct store {
    int fd;
    int folder_fd;
    char path[STORE_PATH_MAX], temporary[STORE_PATH_MAX];
};

/* Creates the folder if it is missing (one level). SOLO_ESYS, SOLO_ELIMIT (path too long). The
 * temporary file is locked as long as it is written. */
int store_begin(struct store *store, const char *folder, const char *name);
int store_write(struct store *store, const void *bytes, size_t size);
/* Writes at the start of the file, for a header that is known last. */
int store_write_at(struct store *store, uint64_t offset, const void *bytes, size_t size);
int store_commit(struct store *store);   /* ends the struct, also on an error */
void store_abandon(struct store *store); /* the old file stays */
/* Removes what processes that died while writing this file have left; how many. */
int store_sweep(const char *folder, const char *name);

/* SOLO_ENOENT: there is none. Gives *fd_out and the size: store_close. */
int store_open(const char *folder, const char *name, int *fd_out, uint64_t *size_out);
/* Exactly `size` bytes; SOLO_ECORRUPT: the file ends before. */
int store_read(int fd, void *bytes, size_t size);
void store_close(int fd);

#endif
