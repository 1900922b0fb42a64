/* report.h - an event of the protocol as one JSON line, for the queue of a node and for the
 * master's file. */
#ifndef SOLO_NODE_REPORT_H
#define SOLO_NODE_REPORT_H

#include <stddef.h>

#include "protocol/event.h"

size_t report_line(const struct event *event, char *line, size_t size);

#endif
