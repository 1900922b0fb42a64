#include "node/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

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

/* What is no UTF-8 (a text that was cut, or that another node made up) becomes U+FFFD. */
static size_t escape(char *out, size_t size, const char *value)
{
    size_t used = 0;
    for (size_t left = strlen(value), length; left > 0 && used + 8 < size;
         value += length, left -= length) {
        unsigned char first = (unsigned char)*value;
        length = utf8_length(value, left);
        if (length == 0 || first < 0x20 || first == 0x7f) {
            used += (size_t)snprintf(out + used, size - used, "\\u%04x", length ? first : 0xfffdu);
            length = 1;
            continue;
        }
        if (first == '"' || first == '\\') {
            out[used++] = '\\';
        }
        memcpy(out + used, value, length);
        used += length;
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
