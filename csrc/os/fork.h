/* fork.h - sockets that a forked child must not keep.
 *
 * A child of fork (a DataLoader's worker) has all descriptors of its parent. As long as it lives
 * none of the parent's connections ends when the parent dies: nobody hears of the death before the
 * lease runs out, and its port still takes connections that nobody will answer. Close-on-exec does
 * not help, there is no exec. So the child closes ours the moment it begins.
 *
 * Any thread. Limit: descriptors below FORK_FDS_MAX; above they are kept. */
#ifndef SOLO_OS_FORK_H
#define SOLO_OS_FORK_H

#define FORK_FDS_MAX 16384 /* 128 KiB of address space, touched where there are sockets */

/* In children forked from now on this socket is closed. Nothing to undo: a descriptor that means
 * another file by then is left alone. */
void fork_hide(int fd);

#endif
