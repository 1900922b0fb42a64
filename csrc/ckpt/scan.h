/* scan.h - reads JSON front to back without building it; the caller says what it expects.
 *
 * Strings stay in place until decoded. After a fault everything returns false and `what` says
 * why. Depth is bounded by the caller's own nesting and SCAN_DEPTH_MAX for what is skipped. */
#ifndef SOLO_CKPT_SCAN_H
#define SOLO_CKPT_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCAN_DEPTH_MAX 16u

struct scan {
    const uint8_t *start, *at, *end;
    const char *what; /* NULL: no fault */
};

struct scan_text { /* between the quotes, escapes not yet resolved */
    const uint8_t *at;
    size_t size;
};

struct scan scan_of(const void *bytes, size_t size);
bool scan_fail(struct scan *json, const char *what); /* keeps the first; false */
char scan_peek(struct scan *json);                   /* the next byte that counts; 0: none */
bool scan_enter(struct scan *json, char bracket);    /* '{' or '[' */

/* The next key, or element, of what was entered; false: its end (or a fault). */
bool scan_key(struct scan *json, bool *first, struct scan_text *key_out);
bool scan_element(struct scan *json, bool *first);

bool scan_string(struct scan *json, struct scan_text *out);
bool scan_uint(struct scan *json, uint64_t *out); /* digits alone: no sign, point, exponent */
bool scan_skip(struct scan *json);                /* any value */
bool scan_end(struct scan *json);                 /* nothing but white space is left */

bool scan_is(struct scan_text text, const char *word);
/* Resolves escapes into out, of at least text.size bytes; returns the length, or SIZE_MAX for
 * a broken escape. */
size_t scan_decode(struct scan_text text, char *out);
bool scan_is_utf8(const void *bytes, size_t size);

#endif
