/* json.h - one JSON object on one line, into the caller's memory. A line that does not fit is
 * ended early but stays valid JSON: the field that has no room is left out, and those after it.
 *
 * Any thread; no state but the struct. */
#ifndef SOLO_NODE_JSON_H
#define SOLO_NODE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
    char *text;
    size_t size, used;
    bool full, first;
};

/* Borrows `text` (size >= 3) until json_end. */
struct json json_begin(char *text, size_t size);
void json_text(struct json *json, const char *key, const char *value);
void json_u64(struct json *json, const char *key, uint64_t value);
void json_millionths(struct json *json, const char *key, uint64_t value); /* "1.234567" */
void json_hex(struct json *json, const char *key, uint64_t value);        /* "00ff..", 16 digits */
size_t json_end(struct json *json); /* the length, without the final zero */

#endif
