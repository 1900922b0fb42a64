/* preflight.h - checks of this machine before Python starts; steps of launch.h. */
#ifndef LAUNCHER_PREFLIGHT_H
#define LAUNCHER_PREFLIGHT_H

#include "launch.h"

struct finding preflight_script(struct launch *launch);
struct finding preflight_torchrun_flags(struct launch *launch);
struct finding preflight_worker_url(struct launch *launch);
struct finding preflight_memory(struct launch *launch);
struct finding preflight_token(struct launch *launch);
struct finding preflight_log_dir(struct launch *launch);
struct finding preflight_state_dir(struct launch *launch);
struct finding preflight_shared_memory(struct launch *launch);
struct finding preflight_open_files(struct launch *launch);

#endif
