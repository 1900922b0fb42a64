/* bytes.h - bounded little-endian reading and writing. A reader or writer that ran out of
 * room stays at fault: check `ok` once, at the end. */
#ifndef SOLO_BASE_BYTES_H
#define SOLO_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct reader {
    const uint8_t *at, *end;
    bool ok;
};

struct writer {
    uint8_t *at, *end;
    bool ok;
};

static inline struct reader reader_of(const void *bytes, size_t size)
{
    const uint8_t *start = (const uint8_t *)bytes;
    return (struct reader){start, size ? start + size : start, true};
}

static inline struct writer writer_of(void *bytes, size_t size)
{
    uint8_t *start = (uint8_t *)bytes;
    return (struct writer){start, size ? start + size : start, true};
}

/* A pointer to the next `size` bytes, or NULL. */
static inline const uint8_t *read_bytes(struct reader *reader, size_t size)
{
    if (!reader->ok || (size_t)(reader->end - reader->at) < size) {
        reader->ok = false;
        return NULL;
    }
    const uint8_t *bytes = reader->at;
    reader->at += size;
    return bytes;
}

static inline uint64_t read_uint(struct reader *reader, size_t size)
{
    const uint8_t *bytes = read_bytes(reader, size);
    uint64_t value = 0;
    for (size_t i = 0; bytes && i < size; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

static inline uint8_t read_u8(struct reader *reader)
{
    return (uint8_t)read_uint(reader, 1);
}

static inline uint16_t read_u16(struct reader *reader)
{
    return (uint16_t)read_uint(reader, 2);
}

static inline uint32_t read_u32(struct reader *reader)
{
    return (uint32_t)read_uint(reader, 4);
}

static inline uint64_t read_u64(struct reader *reader)
{
    return read_uint(reader, 8);
}

/* A length byte pair and its text, into `text` of `size` bytes with a final zero; a text that
 * does not fit, or holds a zero byte, is a fault. */
static inline void read_text(struct reader *reader, char *text, size_t size)
{
    size_t length = read_u16(reader);
    const uint8_t *bytes = read_bytes(reader, length);
    text[0] = 0;
    if (!bytes) {
        return;
    }
    if (length >= size || memchr(bytes, 0, length)) {
        reader->ok = false;
        return;
    }
    memcpy(text, bytes, length);
    text[length] = 0;
}

static inline void write_bytes(struct writer *writer, const void *bytes, size_t size)
{
    if (!writer->ok || (size_t)(writer->end - writer->at) < size) {
        writer->ok = false;
        return;
    }
    if (size) {
        memcpy(writer->at, bytes, size);
        writer->at += size;
    }
}

static inline void write_uint(struct writer *writer, uint64_t value, size_t size)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    write_bytes(writer, bytes, size);
}

static inline void write_text(struct writer *writer, const char *text)
{
    size_t length = strlen(text);
    if (length > UINT16_MAX) {
        writer->ok = false;
        return;
    }
    write_uint(writer, length, 2);
    write_bytes(writer, text, length);
}

#endif
