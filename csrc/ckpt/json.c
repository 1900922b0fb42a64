#include "ckpt/json.h"

#include <string.h>

struct json json_of(const void *bytes, size_t size)
{
    return (struct json){bytes, bytes, (const uint8_t *)bytes + size, NULL};
}

bool json_fail(struct json *json, const char *what)
{
    if (!json->what) {
        json->what = what;
    }
    return false;
}

char json_peek(struct json *json)
{
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\n' || *json->at == '\t' ||
                                    *json->at == '\r')) {
        json->at++;
    }
    return json->at < json->end && !json->what ? (char)*json->at : 0;
}

static bool accept(struct json *json, char wanted)
{
    if (json_peek(json) != wanted || !wanted) {
        return false;
    }
    json->at++;
    return true;
}

bool json_enter(struct json *json, char bracket)
{
    return accept(json, bracket) || json_fail(json, "an object or array is missing");
}

bool json_element(struct json *json, bool *first)
{
    char next = json_peek(json);
    if (next == ']' || next == '}') {
        json->at++;
        return false;
    }
    if (!*first && !accept(json, ',')) {
        return json_fail(json, "a comma is missing");
    }
    *first = false;
    next = json_peek(json);
    return (next && next != ']' && next != '}') || json_fail(json, "an element is missing");
}

bool json_key(struct json *json, bool *first, struct json_text *key_out)
{
    return json_element(json, first) && json_string(json, key_out) &&
           (accept(json, ':') || json_fail(json, "a colon is missing"));
}

bool json_string(struct json *json, struct json_text *out)
{
    if (!accept(json, '"')) {
        return json_fail(json, "a string is missing");
    }
    out->at = json->at;
    while (json->at < json->end && *json->at != '"') {
        if (*json->at < 0x20) {
            return json_fail(json, "a control character is inside a string");
        }
        json->at += *json->at == '\\' ? 2 : 1;
    }
    if (json->at >= json->end) {
        json->at = json->end;
        return json_fail(json, "a string has no end");
    }
    out->size = (size_t)(json->at - out->at);
    json->at++;
    return true;
}

bool json_uint(struct json *json, uint64_t *out)
{
    const uint8_t *start = (json_peek(json), json->at);
    uint64_t value = 0;
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9') {
        unsigned digit = *json->at - '0';
        if (value > (UINT64_MAX - digit) / 10) {
            return json_fail(json, "a number is larger than 64 bits");
        }
        value = value * 10 + digit;
        json->at++;
    }
    size_t digits = (size_t)(json->at - start);
    char next = json->at < json->end ? (char)*json->at : ',';
    if (!digits || (digits > 1 && *start == '0') || next == '.' || next == 'e' || next == 'E') {
        return json_fail(json, "a count is not a whole number");
    }
    *out = value;
    return true;
}

static bool skip_plain(struct json *json)
{
    const uint8_t *start = json->at;
    while (json->at < json->end && !strchr(" \t\r\n,]}[{\":", *json->at)) {
        json->at++;
    }
    size_t size = (size_t)(json->at - start);
    bool word = (size == 4 && (!memcmp(start, "true", 4) || !memcmp(start, "null", 4))) ||
                (size == 5 && !memcmp(start, "false", 5));
    bool number = size && (*start == '-' || (*start >= '0' && *start <= '9'));
    return word || number || json_fail(json, "a value is not JSON");
}

static bool skip(struct json *json, unsigned depth)
{
    char next = json_peek(json);
    struct json_text unused;
    if (next == '"') {
        return json_string(json, &unused);
    }
    if (next != '{' && next != '[') {
        return skip_plain(json);
    }
    if (depth >= JSON_DEPTH_MAX) {
        return json_fail(json, "it is nested too deep");
    }
    json->at++;
    bool first = true;
    while (next == '{' ? json_key(json, &first, &unused) : json_element(json, &first)) {
        if (!skip(json, depth + 1)) {
            return false;
        }
    }
    return !json->what;
}

bool json_skip(struct json *json)
{
    return skip(json, 0);
}

bool json_end(struct json *json)
{
    return !json->what &&
           ((json_peek(json), json->at == json->end) || json_fail(json, "text follows its end"));
}

bool json_is(struct json_text text, const char *word)
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
        uint32_t digit = *at >= '0' && *at <= '9'             ? *at - (uint32_t)'0'
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

size_t json_decode(struct json_text text, char *out)
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

bool json_is_utf8(const void *bytes, size_t size)
{
    const uint8_t *at = bytes, *end = at + size;
    while (at < end) {
        uint8_t lead = *at++;
        if (lead < 0x80) {
            continue;
        }
        int more = lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2
                   : lead >= 0xf0 && lead < 0xf5 ? 3 : -1;
        if (more < 0 || end - at < more) {
            return false;
        }
        if ((lead == 0xe0 && *at < 0xa0) || (lead == 0xed && *at > 0x9f) ||
            (lead == 0xf0 && *at < 0x90) || (lead == 0xf4 && *at > 0x8f)) {
            return false;
        }
        for (; more > 0; more--, at++) {
            if ((*at & 0xc0) != 0x80) {
                return false;
            }
        }
    }
    return true;
}
