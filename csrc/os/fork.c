#include "os/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

/* By descriptor: the socket's inode, which tells it from a later file with the same number. */
static _Atomic uint64_t inodes[FORK_FDS_MAX];
static atomic_int above; /* every hidden descriptor is below */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t socket_inode(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? (uint64_t)status.st_ino : 0;
}

/* Other threads may have been anywhere when the process was forked: only system calls here. */
static void in_child(void)
{
    for (int fd = 0; fd < atomic_load(&above); fd++) {
        uint64_t inode = atomic_exchange(&inodes[fd], 0);
        if (inode && socket_inode(fd) == inode) {
            close(fd);
        }
    }
    atomic_store(&above, 0);
}

static void register_handler(void)
{
    (void)pthread_atfork(NULL, NULL, in_child); /* without memory for it: as if we had no fork.c */
}

void fork_hide(int fd)
{
    if (fd < 0 || fd >= FORK_FDS_MAX) {
        return;
    }
    pthread_once(&once, register_handler);
    atomic_store(&inodes[fd], socket_inode(fd));
    int before = atomic_load(&above);
    while (before <= fd && !atomic_compare_exchange_weak(&above, &before, fd + 1)) {
    }
}
