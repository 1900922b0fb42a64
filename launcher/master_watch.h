/* master_watch.h - the master's look at the node that started it: when that node has died and
 * no member is left, nobody will ever end the job, so the master ends.
 *
 * Threads: one of its own between begin and end. */
#ifndef LAUNCHER_MASTER_WATCH_H
#define LAUNCHER_MASTER_WATCH_H

#include <sys/syscall.h>
#include <sys/types.h>

#include "launch.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* Linux 5.3, on every architecture; older headers lack it */
#endif

/* In the master's environment: "PIDFD:PID" of node 0's torchrun. */
extern const char master_watch_variable[];

/* Does nothing if no node started this master. */
void master_watch_begin(const struct launch *launch, struct solo_master *master);
void master_watch_end(void);

/* Whether that process is a master whose starter is dead. */
bool master_watch_is_abandoned(pid_t master);

/* Node 0 came back and uses that master: it shall look at this process from now on. Else it would
 * end while the new node's ranks still start, if the members it has now leave meanwhile. */
void master_watch_adopt(pid_t master);

#endif
