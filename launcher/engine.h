/* engine.h - the master and its status are in libsolo only once node/ is; until then solorun
 * starts without them. */
#ifndef LAUNCHER_ENGINE_H
#define LAUNCHER_ENGINE_H

#include "solo.h"

#pragma weak solo_status_get
#pragma weak solo_master_open
#pragma weak solo_master_run
#pragma weak solo_master_stop
#pragma weak solo_master_close
#pragma weak solo_log_set

#endif
