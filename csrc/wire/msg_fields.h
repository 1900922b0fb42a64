/* msg_fields.h - a cursor that reads or writes a message's fields, whichever it was made for.
 *
 * A reader checks bounds, counts and texts; a fault stays. A description hook sees every field's
 * name and kind, so that docs/wire.md is compared with the code. */
#ifndef SOLO_WIRE_MSG_FIELDS_H
#define SOLO_WIRE_MSG_FIELDS_H

#include "base/bytes.h"

struct fields {
    bool write, ok;
    struct reader reader;
    struct writer writer;
    void (*describe)(void *context, const char *name, const char *kind);
    void *context;
};

static inline struct fields fields_writer(void *bytes, size_t capacity)
{
    return (struct fields){.write = true, .ok = true, .writer = writer_of(bytes, capacity)};
}

static inline struct fields fields_reader(const void *bytes, size_t size)
{
    return (struct fields){.ok = true, .reader = reader_of(bytes, size)};
}

static inline size_t fields_size(const struct fields *f, const void *bytes)
{
    return (size_t)(f->writer.at - (const uint8_t *)bytes);
}

static inline void field_named(struct fields *f, const char *name, const char *kind)
{
    if (f->describe) {
        f->describe(f->context, name, kind);
    }
}

static inline void field_ok(struct fields *f)
{
    f->ok = f->ok && (f->write ? f->writer.ok : f->reader.ok);
}

static inline uint64_t field_uint(struct fields *f, uint64_t value, size_t size)
{
    if (f->write) {
        write_uint(&f->writer, value, size);
    } else {
        value = read_uint(&f->reader, size);
    }
    field_ok(f);
    return value;
}

static inline void field_text(struct fields *f, const char *name, char *text, size_t size)
{
    field_named(f, name, "text");
    if (f->write) {
        size_t length = 0;
        while (length < size - 1 && text[length]) {
            length++;
        }
        write_uint(&f->writer, length, 2);
        write_bytes(&f->writer, text, length);
    } else {
        read_text(&f->reader, text, size);
    }
    field_ok(f);
}

static inline void field_raw(struct fields *f, const char *name, uint8_t *bytes, size_t size)
{
    field_named(f, name, "bytes");
    if (f->write) {
        write_bytes(&f->writer, bytes, size);
    } else {
        const uint8_t *from = read_bytes(&f->reader, size);
        if (from) {
            memcpy(bytes, from, size);
        } else {
            memset(bytes, 0, size);
        }
    }
    field_ok(f);
}

static inline double field_double(struct fields *f, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = field_uint(f, bits, 8);
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define FIELD_UINT(f, name, place, bytes)                                                          \
    (field_named(f, name, "u" #bytes), (place) = (__typeof__(place))field_uint(f, place, bytes))

#define FIELD_INT(f, name, place)                                                                  \
    (field_named(f, name, "i4"), (place) = (int32_t)(uint32_t)field_uint(f, (uint32_t)(place), 4))

#define FIELD_DOUBLE(f, name, place) (field_named(f, name, "f8"), (place) = field_double(f, place))

#define FIELD_TEXT(f, name, place) field_text(f, name, place, sizeof(place))

#define FIELD_BOOL(f, name, place)                                                                 \
    do {                                                                                           \
        field_named(f, name, "bool");                                                              \
        uint64_t field_value = field_uint(f, (f)->write && (place), 1);                            \
        (f)->ok = (f)->ok && field_value <= 1;                                                     \
        (place) = field_value == 1;                                                                \
    } while (0)

#define FIELD_ENUM(f, name, place, type, least, most)                                              \
    do {                                                                                           \
        field_named(f, name, "u1");                                                                \
        int64_t field_value = (int64_t)field_uint(f, (f)->write ? (uint64_t)(place) : 0, 1);       \
        (f)->ok = (f)->ok && field_value >= (int64_t)(least) && field_value <= (int64_t)(most);    \
        (place) = (f)->ok ? (type)field_value : (least);                                           \
    } while (0)

#define FIELD_COUNT(f, name, place, limit)                                                         \
    do {                                                                                           \
        field_named(f, name, "count");                                                             \
        uint64_t field_value = field_uint(f, place, 4);                                            \
        (f)->ok = (f)->ok && field_value <= (limit);                                               \
        (place) = (f)->ok ? (uint32_t)field_value : 0;                                             \
    } while (0)

#endif
