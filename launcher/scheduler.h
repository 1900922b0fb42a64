/* scheduler.h - what Slurm, Kubernetes' indexed jobs and SkyPilot say about this node. */
#ifndef LAUNCHER_SCHEDULER_H
#define LAUNCHER_SCHEDULER_H

#include "settings.h"

void scheduler_offer(struct settings *settings);

/* One task a GPU instead of one a node. */
struct finding scheduler_check(void);

/* The first name of a Slurm node list: "d[01-3,7],e" is d01. NULL if it has none. Pure. */
char *scheduler_first_node(const char *nodelist);

#endif
