#include "os/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"
#include "os/clock.h"
#include "os/fork.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

#define HUGE_PAGE_BYTES (2u << 20)

/* ---- segments --------------------------------------------------------------------------- */

static int map(int fd, size_t size, struct shm *out)
{
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return err_errno("cannot map %zu bytes of shared memory", size);
    }
    if (size >= HUGE_PAGE_BYTES) {
        madvise(base, size, MADV_HUGEPAGE); /* a wish: refused where shmem has no huge pages */
    }
    *out = (struct shm){.base = base, .size = size, .fd = fd};
    return 0;
}

int shm_create(const char *name, size_t size, struct shm *out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size = (size + page - 1) / page * page;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return err_errno("memfd_create");
    }
    int rc = 0;
    if (ftruncate(fd, (off_t)size) < 0) {
        rc = err_errno("cannot size shared memory to %zu bytes", size);
    } else if (fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        rc = err_errno("cannot seal shared memory");
    } else {
        rc = map(fd, size, out);
    }
    if (rc < 0) {
        close(fd);
    }
    return rc;
}

int shm_attach(int fd, size_t size_min, struct shm *out)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    int rc = 0;
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &status) < 0) {
        rc = err_set(SOLO_EPEER, "the peer's shared memory is not sealed against shrinking");
    } else if (status.st_size <= 0 || (uint64_t)status.st_size < size_min) {
        rc = err_set(SOLO_EPEER, "the peer's shared memory has %lld bytes, not %zu",
                     (long long)status.st_size, size_min);
    } else {
        rc = map(fd, (size_t)status.st_size, out);
    }
    if (rc < 0) {
        close(fd);
    }
    return rc;
}

int shm_map_twice(const struct shm *shm, size_t offset, size_t size, uint8_t **out)
{
    /* Reserves the addresses first, so that nobody else gets the second half of them. */
    uint8_t *base = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return err_errno("no addresses for %zu bytes of shared memory", 2 * size);
    }
    for (size_t half = 0; half < 2; half++) {
        if (mmap(base + half * size, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shm->fd,
                 (off_t)offset) == MAP_FAILED) {
            int rc = err_errno("cannot map %zu bytes of shared memory", size);
            munmap(base, 2 * size);
            return rc;
        }
    }
    *out = base;
    return 0;
}

void shm_unmap_twice(uint8_t *base, size_t size)
{
    if (base) {
        munmap(base, 2 * size);
    }
}

void shm_drop_fd(struct shm *shm)
{
    if (shm->base && shm->fd >= 0) {
        close(shm->fd);
        shm->fd = -1;
    }
}

void shm_close(struct shm *shm)
{
    if (shm->base) {
        shm_drop_fd(shm);
        munmap(shm->base, shm->size);
    }
    *shm = (struct shm){.fd = -1};
}

/* ---- passing descriptors ---------------------------------------------------------------- */

/* Room for SHM_FDS_MAX descriptors, aligned as CMSG wants it. */
union control {
    char bytes[CMSG_SPACE(SHM_FDS_MAX * sizeof(int))];
    struct cmsghdr align;
};

static int wait_ready(int socket, short events, uint64_t deadline_us)
{
    struct pollfd poll_one = {.fd = socket, .events = events};
    uint64_t now_us = clock_us();
    int left_ms = clock_left_ms(deadline_us, now_us);
    int rc = left_ms == 0 ? 0 : poll(&poll_one, 1, left_ms);
    if (rc < 0 && errno != EINTR) {
        return err_errno("poll");
    }
    return rc == 0 ? err_set(SOLO_ETIMEDOUT, "the process at the other end does not answer") : 0;
}

int shm_send_fds(int socket, const void *bytes, size_t size, const int *fds, uint32_t fd_count,
                 uint64_t deadline_us)
{
    MUST(size > 0 && fd_count <= SHM_FDS_MAX);
    union control control = {0};
    size_t sent = 0;
    while (sent < size) {
        struct iovec part = {(char *)(uintptr_t)bytes + sent, size - sent};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (sent == 0 && fd_count > 0) { /* they travel with the first byte */
            message.msg_control = control.bytes;
            message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
            struct cmsghdr *head = CMSG_FIRSTHDR(&message);
            head->cmsg_level = SOL_SOCKET;
            head->cmsg_type = SCM_RIGHTS;
            head->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
            memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
        }
        ssize_t count = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count >= 0) {
            sent += (size_t)count;
        } else if (errno == EAGAIN) {
            TRY(wait_ready(socket, POLLOUT, deadline_us));
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return err_set(SOLO_ECLOSED, "the process at the other end is gone");
        } else if (errno != EINTR) {
            return err_errno("sendmsg");
        }
    }
    return 0;
}

/* Adds the descriptors of one message to fds; those beyond `want` are closed. */
static void collect(struct msghdr *message, int *fds, uint32_t want, uint32_t *have)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
            if (*have < want) {
                fds[*have] = fd;
            } else {
                close(fd);
            }
            (*have)++;
        }
    }
}

static int receive_all(int socket, void *bytes, size_t size, int *fds, uint32_t want,
                       uint32_t *have, uint64_t deadline_us)
{
    union control control;
    size_t received = 0;
    while (received < size) {
        struct iovec part = {(char *)bytes + received, size - received};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (count > 0) {
            collect(&message, fds, want, have);
            received += (size_t)count;
        } else if (count == 0 || errno == ECONNRESET) {
            return err_set(SOLO_ECLOSED, "the process at the other end is gone");
        } else if (errno == EAGAIN) {
            TRY(wait_ready(socket, POLLIN, deadline_us));
        } else if (errno != EINTR) {
            return err_errno("recvmsg");
        }
    }
    return 0;
}

int shm_receive_fds(int socket, void *bytes, size_t size, int *fds, uint32_t fd_count,
                    uint64_t deadline_us)
{
    MUST(size > 0 && fd_count <= SHM_FDS_MAX);
    uint32_t have = 0;
    int rc = receive_all(socket, bytes, size, fds, fd_count, &have, deadline_us);
    if (rc == 0 && have != fd_count) {
        rc = err_set(SOLO_EPEER, "%u descriptors came instead of %u", have, fd_count);
    }
    for (uint32_t i = 0; rc < 0 && i < have && i < fd_count; i++) {
        close(fds[i]);
    }
    return rc;
}

/* ---- abstract sockets ------------------------------------------------------------------- */

static int local_socket(const char *name, struct sockaddr_un *addr, socklen_t *size, int *fd_out)
{
    size_t length = strlen(name);
    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (length == 0 || length + 1 > sizeof addr->sun_path) {
        return err_set(SOLO_EINVAL, "a local socket's name has 1 to %zu bytes, not %zu",
                       sizeof addr->sun_path - 1, length);
    }
    memcpy(addr->sun_path + 1, name, length); /* byte 0 stays zero: abstract, not a file */
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    *fd_out = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    fork_hide(*fd_out);
    return *fd_out < 0 ? err_errno("socket") : 0;
}

int shm_listen(const char *name, int *fd_out)
{
    struct sockaddr_un addr;
    socklen_t size = 0;
    int fd = -1;
    TRY(local_socket(name, &addr, &size, &fd));
    if (bind(fd, (const struct sockaddr *)&addr, size) < 0 || listen(fd, 64) < 0) {
        int rc = errno == EADDRINUSE ? err_set(SOLO_EINUSE, "local socket %s is in use", name)
                                     : err_errno("cannot listen on local socket %s", name);
        close(fd);
        return rc;
    }
    *fd_out = fd;
    return 0;
}

int shm_connect(const char *name, int *fd_out)
{
    struct sockaddr_un addr;
    socklen_t size = 0;
    int fd = -1;
    TRY(local_socket(name, &addr, &size, &fd));
    if (connect(fd, (const struct sockaddr *)&addr, size) < 0) { /* at once, or EAGAIN: full */
        int rc = errno == ECONNREFUSED || errno == ENOENT
                     ? err_set(SOLO_ENOENT, "nobody listens on local socket %s", name)
                     : err_errno("cannot connect to local socket %s", name);
        close(fd);
        return rc;
    }
    *fd_out = fd;
    return 0;
}

int shm_accept(int listen_fd, int *fd_out)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        bool none = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        return none ? SOLO_EAGAIN : err_errno("accept on a local socket");
    }
    fork_hide(fd);
    *fd_out = fd;
    return 0;
}
