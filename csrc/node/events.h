/* events.h - what happened, as JSON lines: a queue that the program drains at its leisure.
 *
 * Threads: any. Limits: EVENTS_MAX lines of at most EVENTS_LINE_MAX bytes; the oldest are
 * dropped and counted in the next line that is taken. */
#ifndef SOLO_NODE_EVENTS_H
#define SOLO_NODE_EVENTS_H

#include "node/json.h"
#include "os/thread.h"

#define EVENTS_MAX      1024u
#define EVENTS_LINE_MAX 2048u

struct events {
    struct lock lock;
    char *lines[EVENTS_MAX]; /* a ring; each line is its own allocation */
    uint32_t first, count;
    uint64_t dropped;
};

void events_init(struct events *events);
void events_deinit(struct events *events);

/* Adds one line, which is copied. Without memory it counts as dropped. */
void events_put(struct events *events, const char *line);

/* The oldest line, or 0: none. A line that does not fit is cut to an object that says so. */
int events_next(struct events *events, char *json, size_t size);

/* Begins a line with "event" and "time" (seconds since 1970). */
struct json event_begin(char *text, size_t size, const char *name);

#endif
