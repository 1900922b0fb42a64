/* master_process.h - the master as a process: `solorun master`, and its start by node 0.
 *
 * It has its own session and log, outlives node 0's ranks while members remain, and ends
 * with the job, or when node 0 died and nobody is left. */
#ifndef LAUNCHER_MASTER_PROCESS_H
#define LAUNCHER_MASTER_PROCESS_H

#include "launch.h"

/* Node 0: binds the port and starts the master, or uses the one that the job has already. If
 * the URL is not an address of this machine the master is elsewhere. */
struct finding master_process_start(struct launch *launch);

/* solorun master: serves until the job is over; returns the exit status. */
int master_process_run(struct launch *launch);

#endif
