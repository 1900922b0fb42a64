#include "os/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "os/clock.h"

#define TEMPORARY_SUFFIX ".tmp"

enum { LOCK_US = 1000000, LOCK_PAUSE_US = 1000 };

static int make_path(char *out, const char *folder, const char *name, const char *suffix)
{
    int length = snprintf(out, STORE_PATH_MAX, "%s/%s%s", folder, name, suffix);
    if (length < 0 || (unsigned)length >= STORE_PATH_MAX) {
        return err_set(SOLO_ELIMIT, "the path %.100s/%s... is longer than %u bytes", folder, name,
                       STORE_PATH_MAX);
    }
    return 0;
}

/* A sweeper has it for a moment; who has it longer is another writer of this name and pid, which
 * may be stopped. */
static bool lock_file(int fd)
{
    uint64_t end_us = clock_us() + LOCK_US;
    for (;;) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno == ENOLCK || errno == EOPNOTSUPP) {
            return true;
        }
        if (errno != EWOULDBLOCK || clock_us() > end_us) {
            return false;
        }
        clock_sleep_until(clock_us() + LOCK_PAUSE_US);
    }
}

/* The lock says that the writer lives, wherever it does: pids are of one machine. A sweeper that
 * comes between open and lock takes the file away, and then it is made anew. */
static int open_temporary(struct store *store)
{
    for (;;) {
        struct stat ours, there;
        store->fd = open(store->temporary, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (store->fd < 0) {
            return err_errno("cannot write %.200s", store->temporary);
        }
        bool locked = lock_file(store->fd);
        bool whole = locked && fstat(store->fd, &ours) == 0 && ftruncate(store->fd, 0) == 0;
        if (!whole) {
            int rc = err_errno("cannot write %.200s", store->temporary);
            close(store->fd);
            return rc;
        }
        if (stat(store->temporary, &there) == 0 && there.st_ino == ours.st_ino) {
            return 0;
        }
        close(store->fd);
    }
}

int store_begin(struct store *store, const char *folder, const char *name)
{
    char suffix[32];
    snprintf(suffix, sizeof suffix, ".%ld" TEMPORARY_SUFFIX, (long)getpid());
    TRY(make_path(store->path, folder, name, ""));
    TRY(make_path(store->temporary, folder, name, suffix));
    if (mkdir(folder, 0700) < 0 && errno != EEXIST) {
        return err_errno("cannot make the folder %.200s", folder);
    }
    store->folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->folder_fd < 0) {
        return err_errno("cannot open the folder %.200s", folder);
    }
    int rc = open_temporary(store);
    if (rc < 0) {
        close(store->folder_fd);
    }
    return rc;
}

/* name.PID.tmp */
static bool is_temporary_of(const char *entry, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(entry, name, length) != 0 || entry[length] != '.') {
        return false;
    }
    const char *pid = entry + length + 1;
    size_t digits = strspn(pid, "0123456789");
    return digits > 0 && strcmp(pid + digits, TEMPORARY_SUFFIX) == 0;
}

/* What was opened may have got its final name before it was locked, and another its old name. */
static int sweep_one(int folder_fd, const char *entry)
{
    int fd = openat(folder_fd, entry, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat ours, there;
    if (fd < 0) {
        return 0;
    }
    int swept = flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &ours) == 0 &&
                fstatat(folder_fd, entry, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                there.st_ino == ours.st_ino && unlinkat(folder_fd, entry, 0) == 0;
    close(fd);
    return swept;
}

int store_sweep(const char *folder, const char *name)
{
    DIR *entries = opendir(folder);
    int swept = 0;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (is_temporary_of(entry->d_name, name)) {
            swept += sweep_one(dirfd(entries), entry->d_name);
        }
    }
    if (entries) {
        closedir(entries);
    }
    return swept;
}

int store_write(struct store *store, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    while (size) {
        ssize_t done = write(store->fd, at, size);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return err_errno("cannot write %.200s", store->temporary);
        }
        at += done;
        size -= (size_t)done;
    }
    return 0;
}

int store_write_at(struct store *store, uint64_t offset, const void *bytes, size_t size)
{
    if (pwrite(store->fd, bytes, size, (off_t)offset) != (ssize_t)size) {
        return err_errno("cannot write %.200s", store->temporary);
    }
    return 0;
}

int store_commit(struct store *store)
{
    int rc = 0;
    if (fsync(store->fd) < 0) {
        rc = err_errno("cannot make %.200s durable", store->temporary);
    } else if (rename(store->temporary, store->path) < 0) {
        rc = err_errno("cannot rename to %.200s", store->path);
    } else if (fsync(store->folder_fd) < 0 && errno != EINVAL) { /* some file systems cannot */
        rc = err_errno("cannot make the name %.200s durable", store->path);
    }
    if (rc < 0) {
        unlink(store->temporary);
    }
    close(store->fd);
    close(store->folder_fd);
    return rc;
}

void store_abandon(struct store *store)
{
    unlink(store->temporary);
    close(store->fd);
    close(store->folder_fd);
}

int store_open(const char *folder, const char *name, int *fd_out, uint64_t *size_out)
{
    char path[STORE_PATH_MAX];
    TRY(make_path(path, folder, name, ""));
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO there must not hang us */
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return err_set(SOLO_ENOENT, "there is no %.200s", path);
    }
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0) {
        int rc = err_errno("cannot read %.200s", path);
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    *fd_out = fd;
    *size_out = (uint64_t)status.st_size;
    return 0;
}

int store_read(int fd, void *bytes, size_t size)
{
    uint8_t *at = bytes;
    while (size) {
        ssize_t done = read(fd, at, size);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return err_errno("cannot read the state file");
        }
        if (done == 0) {
            return err_set(SOLO_ECORRUPT, "the state file ends too early");
        }
        at += done;
        size -= (size_t)done;
    }
    return 0;
}

void store_close(int fd)
{
    close(fd);
}
