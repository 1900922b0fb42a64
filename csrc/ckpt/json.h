/* json.h - reads JSON front to back without building it; the caller says what it expects.
 *
 * Strings stay in place until decoded. After a fault everything returns false and `what` says
 * why. Depth is bounded by the caller's own nesting and JSON_DEPTH_MAX for what is skipped. */
#ifndef SOLO_CKPT_JSON_H
#define SOLO_CKPT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH_MAX 16u

struct json {
    const uint8_t *start, *at, *end;
    const char *what; /* NULL: no fault */
};

struct json_text { /* between the quotes, escapes not yet resolved */
    const uint8_t *at;
    size_t size;
};

struct json json_of(const void *bytes, size_t size);
bool json_fail(struct json *json, const char *what); /* keeps the first; false */
char json_peek(struct json *json);                   /* the next byte that counts; 0: none */
bool json_enter(struct json *json, char bracket);    /* '{' or '[' */

/* The next key, or element, of what was entered; false: its end (or a fault). */
bool json_key(struct json *json, bool *first, struct json_text *key_out);
bool json_element(struct json *json, bool *first);

bool json_string(struct json *json, struct json_text *out);
bool json_uint(struct json *json, uint64_t *out); /* digits alone: no sign, point, exponent */
bool json_skip(struct json *json);                /* any value */
bool json_end(struct json *json);                 /* nothing but white space is left */

bool json_is(struct json_text text, const char *word);
/* Resolves escapes into out, of at least text.size bytes; returns the length, or SIZE_MAX for
 * a broken escape. */
size_t json_decode(struct json_text text, char *out);
bool json_is_utf8(const void *bytes, size_t size);

#endif
