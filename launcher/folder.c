#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

int folder_make(const char *path)
{
    char *at = text_copy(path);
    for (char *slash = at; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        if (mkdir(at, 0777) < 0 && errno != EEXIST) {
            return -errno;
        }
        *slash = '/';
    }
    return mkdir(at, 0777) < 0 && errno != EEXIST ? -errno : 0;
}

const char *folder_obstacle(const char *path)
{
    /* The nearest parent that exists must let us in; the folder itself is made at the start. */
    char *at = text_copy(path);
    struct stat status;
    while (stat(at, &status) < 0 && errno == ENOENT && strrchr(at, '/')) {
        char *slash = strrchr(at, '/');
        slash[slash == at] = 0;
        if (slash == at) {
            break;
        }
    }
    if (stat(at, &status) < 0) {
        return strerror(errno);
    }
    if (!S_ISDIR(status.st_mode)) {
        return text_format("%s is not a directory", at);
    }
    return access(at, W_OK | X_OK) < 0 ? text_format("%s: %s", at, strerror(errno)) : NULL;
}

/* A file with a new name: in containers all processes may have the same pid. */
static const char *write_and_rename(char *name)
{
    static const char content[] = "solo tries whether this directory can be written\n";
    int fd = mkostemp(name, O_CLOEXEC);
    if (fd < 0) {
        return text_format("a file cannot be created there: %s", strerror(errno));
    }
    const char *failed = NULL, *renamed = text_format("%s.renamed", name);
    if (write(fd, content, sizeof content - 1) != (ssize_t)sizeof content - 1) {
        failed = "a file cannot be written there";
    } else if (fsync(fd) < 0) {
        failed = "a file cannot be synced there";
    } else if (rename(name, renamed) < 0) {
        failed = "a file cannot be renamed there";
    }
    const char *why = failed ? text_format("%s: %s", failed, strerror(errno)) : NULL;
    close(fd);
    unlink(failed ? name : renamed);
    return why;
}

const char *folder_probe(const char *path)
{
    int rc = folder_make(path);
    struct stat status;
    if (rc < 0) {
        return strerror(-rc);
    }
    if (stat(path, &status) < 0 || !S_ISDIR(status.st_mode)) {
        return "it is not a directory";
    }
    return write_and_rename(text_format("%s/.solo-probe.XXXXXX", path));
}
