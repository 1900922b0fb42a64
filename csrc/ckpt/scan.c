#include "ckpt/scan.h"

#include <string.h>

#include "base/utf8.h"

struct scan scan_of(const void *bytes, size_t size)
{
    return (struct scan){bytes, bytes, (const uint8_t *)bytes + size, NULL};
}

bool scan_fail(struct scan *json, const char *what)
{
    if (!json->what) {
        json->what = what;
    }
    return false;
}

char scan_peek(struct scan *json)
{
    while (json->at < json->end &&
           (*json->at == ' ' || *json->at == '\n' || *json->at == '\t' || *json->at == '\r')) {
        json->at++;
    }
    return json->at < json->end && !json->what ? (char)*json->at : 0;
}

static bool accept(struct scan *json, char wanted)
{
    if (scan_peek(json) != wanted || !wanted) {
        return false;
    }
    json->at++;
    return true;
}

bool scan_enter(struct scan *json, char bracket)
{
    return accept(json, bracket) || scan_fail(json, "an object or array is missing");
}

static bool next_item(struct scan *json, bool *first, char close)
{
    if (accept(json, close)) {
        return false;
    }
    if (!*first && !accept(json, ',')) {
        return scan_fail(json, "a comma is missing");
    }
    *first = false;
    char next = scan_peek(json);
    return (next && next != ']' && next != '}') || scan_fail(json, "an element is missing");
}

bool scan_element(struct scan *json, bool *first)
{
    return next_item(json, first, ']');
}

bool scan_key(struct scan *json, bool *first, struct scan_text *key_out)
{
    return next_item(json, first, '}') && scan_string(json, key_out) &&
           (accept(json, ':') || scan_fail(json, "a colon is missing"));
}

bool scan_string(struct scan *json, struct scan_text *out)
{
    if (!accept(json, '"')) {
        return scan_fail(json, "a string is missing");
    }
    out->at = json->at;
    while (json->at < json->end && *json->at != '"') {
        if (*json->at < 0x20) {
            return scan_fail(json, "a control character is inside a string");
        }
        json->at += *json->at == '\\' ? 2 : 1;
    }
    if (json->at >= json->end) {
        json->at = json->end;
        return scan_fail(json, "a string has no end");
    }
    out->size = (size_t)(json->at - out->at);
    json->at++;
    return true;
}

bool scan_uint(struct scan *json, uint64_t *out)
{
    const uint8_t *start = (scan_peek(json), json->at);
    uint64_t value = 0;
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9') {
        unsigned digit = *json->at - '0';
        if (value > (UINT64_MAX - digit) / 10) {
            return scan_fail(json, "a number is larger than 64 bits");
        }
        value = value * 10 + digit;
        json->at++;
    }
    size_t digits = (size_t)(json->at - start);
    char next = json->at < json->end ? (char)*json->at : ',';
    if (!digits || (digits > 1 && *start == '0') || next == '.' || next == 'e' || next == 'E') {
        return scan_fail(json, "a count is not a whole number");
    }
    *out = value;
    return true;
}

static bool skip_plain(struct scan *json)
{
    const uint8_t *start = json->at;
    while (json->at < json->end && !strchr(" \t\r\n,]}[{\":", *json->at)) {
        json->at++;
    }
    size_t size = (size_t)(json->at - start);
    bool word = (size == 4 && (!memcmp(start, "true", 4) || !memcmp(start, "null", 4))) ||
                (size == 5 && !memcmp(start, "false", 5));
    bool number = size && (*start == '-' || (*start >= '0' && *start <= '9'));
    return word || number || scan_fail(json, "a value is not JSON");
}

static bool skip(struct scan *json, unsigned depth)
{
    char next = scan_peek(json);
    struct scan_text unused;
    if (next == '"') {
        return scan_string(json, &unused);
    }
    if (next != '{' && next != '[') {
        return skip_plain(json);
    }
    if (depth >= SCAN_DEPTH_MAX) {
        return scan_fail(json, "it is nested too deep");
    }
    json->at++;
    bool first = true;
    while (next == '{' ? scan_key(json, &first, &unused) : scan_element(json, &first)) {
        if (!skip(json, depth + 1)) {
            return false;
        }
    }
    return !json->what;
}

bool scan_skip(struct scan *json)
{
    return skip(json, 0);
}

bool scan_end(struct scan *json)
{
    return !json->what &&
           ((scan_peek(json), json->at == json->end) || scan_fail(json, "text follows its end"));
}

bool scan_is(struct scan_text text, const char *word)
{
    return text.size == strlen(word) && memcmp(text.at, word, text.size) == 0;
}

static int hex4(const uint8_t *at, const uint8_t *end, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, at++) {
        if (at >= end) {
            return -1;
        }
        uint32_t digit = *at >= '0' && *at <= '9'                 ? *at - (uint32_t)'0'
                         : (*at | 32) >= 'a' && (*at | 32) <= 'f' ? (*at | 32) - 'a' + 10u
                                                                  : 16;
        if (digit == 16) {
            return -1;
        }
        *out = *out << 4 | digit;
    }
    return 0;
}

static size_t put_utf8(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[more] | code >> (6 * more));
    for (size_t i = 1; i <= more; i++) {
        out[i] = (char)(0x80 | (code >> (6 * (more - i)) & 0x3f));
    }
    return more + 1;
}

/* After "\u": the code point, of two halves if the first asks for it. */
static const uint8_t *take_code(const uint8_t *at, const uint8_t *end, uint32_t *code)
{
    if (hex4(at, end, code) < 0) {
        return NULL;
    }
    at += 4;
    if (*code >= 0xdc00 && *code < 0xe000) {
        return NULL;
    }
    if (*code >= 0xd800 && *code < 0xdc00) {
        uint32_t low;
        if (end - at < 6 || at[0] != '\\' || at[1] != 'u' || hex4(at + 2, end, &low) < 0 ||
            low < 0xdc00 || low >= 0xe000) {
            return NULL;
        }
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
        at += 6;
    }
    return at;
}

size_t scan_decode(struct scan_text text, char *out)
{
    static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    const uint8_t *at = text.at, *end = text.at + text.size;
    size_t used = 0;
    while (at < end) {
        if (*at != '\\') {
            out[used++] = (char)*at++;
            continue;
        }
        if (end - at < 2) {
            return SIZE_MAX;
        }
        const char *known = at[1] ? strchr(plain, at[1]) : NULL;
        if (known) {
            out[used++] = means[known - plain];
            at += 2;
            continue;
        }
        uint32_t code = 0;
        at = at[1] == 'u' ? take_code(at + 2, end, &code) : NULL;
        if (!at) {
            return SIZE_MAX;
        }
        used += put_utf8(code, out + used);
    }
    return used;
}

bool scan_is_utf8(const void *bytes, size_t size)
{
    const char *at = bytes;
    for (size_t length; size > 0; at += length, size -= length) {
        length = utf8_length(at, size);
        if (length == 0) {
            return false;
        }
    }
    return true;
}
