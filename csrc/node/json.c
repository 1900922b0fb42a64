#include "node/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define JSON_FIELD_MAX 4096u /* bytes of one field, escaped */

struct json json_begin(char *text, size_t size)
{
    text[0] = '{';
    return (struct json){.text = text, .size = size, .used = 1, .first = true};
}

/* Room for the closing brace and the final zero is always kept. */
static void add_field(struct json *json, const char *field, size_t length)
{
    size_t comma = json->first ? 0 : 2;
    if (json->full || json->used + comma + length + 2 > json->size) {
        json->full = true;
        return;
    }
    memcpy(json->text + json->used, ", ", comma);
    memcpy(json->text + json->used + comma, field, length);
    json->used += comma + length;
    json->first = false;
}

static size_t escape(char *out, size_t size, const char *value)
{
    size_t used = 0;
    for (const unsigned char *at = (const unsigned char *)value; *at && used + 8 < size; at++) {
        if (*at == '"' || *at == '\\') {
            out[used++] = '\\';
            out[used++] = (char)*at;
        } else if (*at < 0x20 || *at >= 0x7f) { /* bytes above are not known to be UTF-8 */
            used += (size_t)snprintf(out + used, size - used, "\\u%04x", *at);
        } else {
            out[used++] = (char)*at;
        }
    }
    out[used] = 0;
    return used;
}

void json_text(struct json *json, const char *key, const char *value)
{
    char field[JSON_FIELD_MAX];
    int length = snprintf(field, sizeof field, "\"%s\": \"", key);
    size_t used = (size_t)length;
    used += escape(field + used, sizeof field - used - 2, value);
    field[used++] = '"';
    add_field(json, field, used);
}

void json_u64(struct json *json, const char *key, uint64_t value)
{
    char field[128];
    int length = snprintf(field, sizeof field, "\"%s\": %" PRIu64, key, value);
    add_field(json, field, (size_t)length);
}

void json_millionths(struct json *json, const char *key, uint64_t value)
{
    char field[128];
    int length = snprintf(field, sizeof field, "\"%s\": %" PRIu64 ".%06" PRIu64, key,
                          value / 1000000, value % 1000000);
    add_field(json, field, (size_t)length);
}

void json_hex(struct json *json, const char *key, uint64_t value)
{
    char field[128];
    int length = snprintf(field, sizeof field, "\"%s\": \"%016" PRIx64 "\"", key, value);
    add_field(json, field, (size_t)length);
}

size_t json_end(struct json *json)
{
    json->text[json->used++] = '}';
    json->text[json->used] = 0;
    return json->used;
}
