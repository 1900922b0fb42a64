#include "node/events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/clock.h"

void events_init(struct events *events)
{
    memset(events, 0, sizeof *events);
    lock_init(&events->lock);
}

void events_deinit(struct events *events)
{
    for (uint32_t i = 0; i < events->count; i++) {
        free(events->lines[(events->first + i) % EVENTS_MAX]);
    }
    events->count = 0;
    lock_deinit(&events->lock);
}

static char *pop(struct events *events)
{
    char *line = events->lines[events->first];
    events->first = (events->first + 1) % EVENTS_MAX;
    events->count--;
    return line;
}

void events_put(struct events *events, const char *line)
{
    char *copy = strdup(line);
    lock_take(&events->lock);
    if (!copy) {
        events->dropped++;
    } else {
        if (events->count == EVENTS_MAX) {
            free(pop(events));
            events->dropped++;
        }
        events->lines[(events->first + events->count++) % EVENTS_MAX] = copy;
    }
    lock_give(&events->lock);
}

int events_next(struct events *events, char *json, size_t size)
{
    lock_take(&events->lock);
    char *line = events->count ? pop(events) : NULL;
    uint64_t dropped = events->dropped;
    events->dropped = line ? 0 : dropped;
    lock_give(&events->lock);
    if (!line) {
        return 0;
    }
    int length;
    size_t body = strlen(line) - 1; /* without its closing brace */
    if (dropped) {
        length = snprintf(json, size, "%.*s, \"dropped\": %" PRIu64 "}", (int)body, line, dropped);
    } else {
        length = snprintf(json, size, "%s", line);
    }
    if (length < 0 || (size_t)length >= size) {
        length = snprintf(json, size, "{\"event\": \"cut\"}");
    }
    free(line);
    return (size_t)length < size ? length : 0;
}

struct json event_begin(char *text, size_t size, const char *name)
{
    struct json json = json_begin(text, size);
    json_text(&json, "event", name);
    json_millionths(&json, "time", clock_wall_us());
    return json;
}
