/* shm.h - a segment of memory that processes of one host share, and passing it to them.
 *
 * Any thread. A segment is a sealed memfd: it has no name, cannot shrink under a reader, and
 * is gone with the last process that maps it. */
#ifndef SOLO_OS_SHM_H
#define SOLO_OS_SHM_H

#include <stddef.h>
#include <stdint.h>

#define SHM_FDS_MAX 8u /* descriptors in one message */

struct shm {
    uint8_t *base;
    size_t size;
    int fd; /* ours; -1 once shm_drop_fd was called */
};

/* A new segment of `size` bytes (rounded up to pages), zero-filled, each page taken when first
 * touched; large ones ask for huge pages. Gives *out: shm_close. */
int shm_create(const char *name /* for /proc alone */, size_t size, struct shm *out);

/* Maps a received descriptor, which it takes, also on an error. SOLO_EPEER: not sealed, or
 * smaller than size_min. */
int shm_attach(int fd, size_t size_min, struct shm *out);
/* Maps `size` bytes from `offset` on (whole pages) a second time, twice in a row, so that whoever
 * goes on past the end is at the beginning. Gives *out: shm_unmap_twice (NULL is allowed). */
int shm_map_twice(const struct shm *shm, size_t offset, size_t size, uint8_t **out);
void shm_unmap_twice(uint8_t *base, size_t size);

void shm_close(struct shm *shm);   /* unmaps; zeroed structs are allowed */
void shm_drop_fd(struct shm *shm); /* the mapping stays; nobody can be given it any more */

/* Sends `size` bytes (at least 1) and descriptors over a connected AF_UNIX socket, waiting
 * until the deadline. The descriptors stay the caller's. */
int shm_send_fds(int socket, const void *bytes, size_t size, const int *fds, uint32_t fd_count,
                 uint64_t deadline_us);

/* Receives such a message whole. Gives the descriptors (closed on exec). SOLO_ECLOSED: the
 * other side is gone; SOLO_EPEER: not `fd_count` descriptors. */
int shm_receive_fds(int socket, void *bytes, size_t size, int *fds, uint32_t fd_count,
                    uint64_t deadline_us);

/* Abstract AF_UNIX stream sockets, non-blocking, scoped by the network namespace; `name` is at
 * most 100 bytes. SOLO_EINUSE / SOLO_ENOENT (nobody listens). Give *fd_out. */
int shm_listen(const char *name, int *fd_out);
int shm_connect(const char *name, int *fd_out);
int shm_accept(int listen_fd, int *fd_out); /* SOLO_EAGAIN: none */

#endif
