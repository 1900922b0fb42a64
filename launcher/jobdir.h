/* jobdir.h - <log_dir>/<job_id>: made at the start, with job.json and the link `latest`. */
#ifndef LAUNCHER_JOBDIR_H
#define LAUNCHER_JOBDIR_H

#include "launch.h"

/* Makes log_dir (a temporary one if none was given), job_dir and node<k>; fills the paths. */
struct finding jobdir_make(struct launch *launch);

/* job.json: command, environment that was set, versions; never the token. */
struct finding jobdir_describe(const struct launch *launch, const struct list *argv,
                               const struct list *set);

#endif
