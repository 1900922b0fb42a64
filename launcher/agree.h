/* agree.h - whether this node fits the job that a master serves: versions and sync settings. */
#ifndef LAUNCHER_AGREE_H
#define LAUNCHER_AGREE_H

#include "launch.h"

/* Fails with both values, and who has which. What the master was not told is not compared. */
struct finding agree_check(const struct launch *launch, const struct solo_status *status);

/* The one spelling of a setting that nodes compare; as it stands if it has none. */
const char *agree_text(enum flag_id id, const char *text);

/* "solo=0.1.0 torch=2.13.0", as the ranks will tell it. */
char *agree_versions(const struct launch *launch);

#endif
