/* report.h - what solorun tells when asked: the members of a job, the health of this node. */
#ifndef LAUNCHER_REPORT_H
#define LAUNCHER_REPORT_H

#include "launch.h"

/* `solorun status [URL]` on stdout. A warning: the master was not reached. */
struct finding report_status(struct launch *launch, const char *url, bool json);

/* `solorun doctor`: every check of a start, a line each: ok, warn or FAIL with its fix.
 * Returns the exit status of the first failure, else 0. */
int report_doctor(struct launch *launch, bool json);

#endif
