#include "os/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/err.h"

/* Whoever wrote last may have died, or the machine, in the middle of a line: what follows is not to
 * be a part of that. */
static void end_line(int fd, uint64_t *size)
{
    char last = '\n';
    if (*size > 0 && pread(fd, &last, 1, (off_t)*size - 1) == 1 && last != '\n' &&
        write(fd, "\n", 1) == 1) {
        ++*size;
    }
}

static int open_file(struct journal *journal)
{
    struct stat status;
    int fd = open(journal->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || fstat(fd, &status) < 0) {
        int rc = err_errno("cannot append to %.200s", journal->path);
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    journal->fd = fd;
    journal->size = (uint64_t)status.st_size;
    end_line(fd, &journal->size);
    return 0;
}

int journal_open(struct journal *journal, const char *path, uint64_t size_max)
{
    *journal = (struct journal){.fd = -1, .size_max = size_max};
    int length = snprintf(journal->path, sizeof journal->path, "%s", path);
    if (length < 0 || (unsigned)length >= sizeof journal->path) {
        return err_set(SOLO_ELIMIT, "the path %.100s... is longer than %u bytes", path,
                       JOURNAL_PATH_MAX - 1);
    }
    return open_file(journal);
}

static void keep(const struct journal *journal, uint32_t number)
{
    char from[JOURNAL_PATH_MAX + 16], to[JOURNAL_PATH_MAX + 16];
    snprintf(to, sizeof to, "%s.%u", journal->path, number);
    if (number == 1) {
        snprintf(from, sizeof from, "%s", journal->path);
    } else {
        snprintf(from, sizeof from, "%s.%u", journal->path, number - 1);
    }
    (void)rename(from, to); /* none yet; or a folder that refuses, and then the file stays */
}

/* A file that could not be moved away (its folder is read-only now) is emptied: the limit holds. */
static int begin_anew(struct journal *journal)
{
    for (uint32_t number = JOURNAL_KEPT; number > 0; number--) {
        keep(journal, number);
    }
    journal_close(journal);
    TRY(open_file(journal));
    if (journal->size > 0 && ftruncate(journal->fd, 0) == 0) {
        journal->size = 0;
    }
    return 0;
}

/* The disk, or a quota, had room for a part of a line alone. */
static int take_back(const struct journal *journal, size_t written, size_t whole)
{
    struct stat status;
    bool back = fstat(journal->fd, &status) == 0 &&
                ftruncate(journal->fd, status.st_size - (off_t)written) == 0;
    return err_set(SOLO_ESYS,
                   "cannot append to %.200s: %zu of %zu bytes had room%s; free some there",
                   journal->path, written, whole, back ? "" : ", and a torn line is left");
}

int journal_add(struct journal *journal, const char *line)
{
    size_t length = strlen(line);
    if (journal->fd < 0) {
        TRY(open_file(journal));
    }
    if (journal->size > 0 && journal->size + length + 1 > journal->size_max) {
        TRY(begin_anew(journal));
    }
    struct iovec parts[] = {{(void *)(uintptr_t)line, length}, {"\n", 1}};
    ssize_t written = writev(journal->fd, parts, 2);
    if (written < 0) {
        return err_errno("cannot append to %.200s", journal->path);
    }
    if ((size_t)written < length + 1) {
        return take_back(journal, (size_t)written, length + 1);
    }
    journal->size += (uint64_t)written;
    return 0;
}

void journal_close(struct journal *journal)
{
    if (journal->fd >= 0) {
        close(journal->fd);
        journal->fd = -1;
    }
}
