#include "os/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define RETRIES_MAX  3 /* of EIO and ESTALE: network storage recovers from both */
#define SAMPLE_PAGES 16
#define SWAPS_MAX    16 /* tries */

/* Magic numbers of statfs(2). `network`: a mapping of it is slow or can fault at any time. */
static const struct {
    long magic;
    const char *name;
    int network;
} filesystems[] = {
    {0xef53, "ext4", 0},        {0x58465342, "xfs", 0},      {0x9123683e, "btrfs", 0},
    {0x01021994, "tmpfs", 0},   {0x2fc12fc1, "zfs", 0},      {0xf2f52010, "f2fs", 0},
    {0x794c7630, "overlay", 0}, {0x6969, "nfs", 1},          {0xff534d42, "cifs", 1},
    {0xfe534d42, "smb2", 1},    {0x517b, "smb", 1},          {0x0bd00bd0, "lustre", 1},
    {0x00c36400, "ceph", 1},    {0x65735546, "fuse", 1},     {0x01021997, "9p", 1},
    {0x47504653, "gpfs", 1},    {0x19830326, "fhgfs", 1},    {0x5346414f, "afs", 1},
    {0x73757245, "coda", 1},    {0x6a656a63, "virtiofs", 1},
};

static int info_of(int fd, struct solo_file_info *out)
{
    struct stat status;
    struct statfs system;
    if (fstat(fd, &status) < 0) {
        return err_errno("fstat");
    }
    if (!S_ISREG(status.st_mode)) {
        return err_set(SOLO_EINVAL, "not a regular file");
    }
    *out = (struct solo_file_info){
        .bytes = (uint64_t)status.st_size,
        .modified_ns =
            (uint64_t)status.st_mtim.tv_sec * 1000000000u + (uint64_t)status.st_mtim.tv_nsec,
        .inode = status.st_ino,
        .device = status.st_dev,
    };
    snprintf(out->filesystem, sizeof out->filesystem, "unknown");
    if (fstatfs(fd, &system) == 0) {
        for (size_t i = 0; i < sizeof filesystems / sizeof *filesystems; i++) {
            if ((uint32_t)system.f_type == (uint32_t)filesystems[i].magic) {
                snprintf(out->filesystem, sizeof out->filesystem, "%s", filesystems[i].name);
                out->network = filesystems[i].network;
            }
        }
    }
    return 0;
}

int solo_file_open(const char *path, struct solo_file **out)
{
    struct solo_file *file = calloc(1, sizeof *file);
    if (!file) {
        return err_set(SOLO_ENOMEM, "no memory to open %s", path);
    }
    snprintf(file->path, sizeof file->path, "%s", path);
    file->direct_fd = -1;
    /* Nonblocking: a FIFO in the file's place must not hang us; regular files ignore it. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int rc = file->fd < 0 ? err_errno("%s", path) : info_of(file->fd, &file->info);
    if (rc < 0) {
        rc = file->fd < 0 && errno == ENOENT ? err_set(SOLO_ENOENT, "%s", err_text()) : rc;
        solo_file_close(file);
        return rc;
    }
    *out = file;
    return 0;
}

void solo_file_close(struct solo_file *file)
{
    if (!file) {
        return;
    }
    if (file->fd >= 0) {
        close(file->fd);
    }
    if (file->direct_fd >= 0) {
        close(file->direct_fd);
    }
    free(file);
}

int solo_file_info_get(struct solo_file *file, struct solo_file_info *out)
{
    *out = file->info;
    return 0;
}

int file_unchanged(const struct solo_file *file)
{
    struct solo_file_info now = {0};
    TRY(info_of(file->fd, &now));
    if (now.bytes != file->info.bytes || now.modified_ns != file->info.modified_ns) {
        return err_set(SOLO_ECORRUPT,
                       "%s was changed while it was read: it had %" PRIu64 " bytes, now %" PRIu64,
                       file->path, file->info.bytes, now.bytes);
    }
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------- */

static int explain(const struct solo_file *file, uint64_t offset, ssize_t got)
{
    if (got == 0) {
        return err_set(SOLO_ECORRUPT, "%s ends at byte %" PRIu64 ": it became shorter", file->path,
                       offset);
    }
    return err_errno("%s: reading at byte %" PRIu64, file->path, offset);
}

static bool again(ssize_t got, int *retries)
{
    if (got >= 0) {
        return false;
    }
    if (errno == EINTR) {
        return true;
    }
    if ((errno == EIO || errno == ESTALE) && *retries > 0) {
        (*retries)--;
        usleep(20000);
        return true;
    }
    return false;
}

int file_read_vectors(const struct solo_file *file, uint64_t offset, struct iovec *vectors,
                      int count)
{
    int retries = RETRIES_MAX;
    while (count > 0) {
        if (vectors->iov_len == 0) {
            vectors++;
            count--;
            continue;
        }
        ssize_t got = preadv(file->fd, vectors, count, (off_t)offset);
        if (again(got, &retries)) {
            continue;
        }
        if (got <= 0) {
            return explain(file, offset, got);
        }
        offset += (uint64_t)got;
        for (size_t left = (size_t)got; left && count > 0;) {
            size_t part = left < vectors->iov_len ? left : vectors->iov_len;
            vectors->iov_base = (char *)vectors->iov_base + part;
            vectors->iov_len -= part;
            left -= part;
            if (!vectors->iov_len) {
                vectors++;
                count--;
            }
        }
    }
    return 0;
}

int file_read_direct(const struct solo_file *file, uint64_t offset, void *to, size_t size,
                     size_t *read_out)
{
    int retries = RETRIES_MAX;
    size_t done = 0;
    while (done < size) {
        ssize_t got =
            pread(file->direct_fd, (char *)to + done, size - done, (off_t)(offset + done));
        if (again(got, &retries)) {
            continue;
        }
        if (got < 0) {
            return explain(file, offset + done, got);
        }
        done += (size_t)got;
        if (got == 0 || (size_t)got % FILE_BLOCK_BYTES) {
            break; /* the end of the file */
        }
    }
    *read_out = done;
    return 0;
}

bool file_direct_open(struct solo_file *file)
{
    if (file->direct_fd >= 0) {
        return true;
    }
    char path[64]; /* the file that is open, even if its name means another one by now */
    snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
    file->direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file->direct_fd < 0) {
        return false;
    }
    void *block = aligned_alloc(FILE_BLOCK_BYTES, FILE_BLOCK_BYTES);
    bool works = block && pread(file->direct_fd, block, FILE_BLOCK_BYTES, 0) > 0;
    free(block);
    if (!works) {
        close(file->direct_fd);
        file->direct_fd = -1;
    }
    return works;
}

int solo_file_cached(struct solo_file *file, uint64_t offset, uint64_t bytes)
{
    int cached = 0, told = 0;
    for (uint64_t i = 0; i < SAMPLE_PAGES && bytes; i++) {
        char byte;
        struct iovec vector = {&byte, 1};
        uint64_t at = offset + bytes / SAMPLE_PAGES * i + bytes / SAMPLE_PAGES / 2;
        ssize_t got = preadv2(file->fd, &vector, 1, (off_t)at, RWF_NOWAIT);
        if (got < 0 && errno != EAGAIN) {
            return -1;
        }
        told++;
        cached += got == 1;
    }
    return told ? cached * 100 / told : -1;
}

/* ---- names ----------------------------------------------------------------------------------- */

int solo_file_swap(const char *from, const char *to)
{
    for (int i = 0; i < SWAPS_MAX; i++) { /* the name may come and go in between */
        if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
            return 1;
        }
        if (errno == ENOENT && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
            return 0;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    if (errno == EINVAL || errno == ENOSYS || errno == EEXIST) {
        return err_set(SOLO_ENOTSUP, "%s cannot change places with %s here", from, to);
    }
    return err_errno("renaming %s to %s", from, to);
}

/* ---- a file as a source of ckpt/ -------------------------------------------------------------- */

static int read_at(void *context, uint64_t offset, void *bytes, size_t count)
{
    struct iovec vector = {bytes, count};
    return file_read_vectors(context, offset, &vector, 1);
}

void solo_file_source(struct solo_file *file, struct solo_ckpt_source *out)
{
    *out = (struct solo_ckpt_source){.context = file, .size = file->info.bytes, .read = read_at};
}
