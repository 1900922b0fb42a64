/* log.h - lines for whoever asked for them with solo_log_set; dropped otherwise. */
#ifndef SOLO_BASE_LOG_H
#define SOLO_BASE_LOG_H

#include "base/err.h"

void log_line(enum solo_log_level level, const char *format, ...) ERR_PRINTF(2, 3);

#endif
