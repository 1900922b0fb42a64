/* text.h - a text built piece by piece in a buffer of fixed size, without stdio: for rooms that
 * may not have it. What does not fit is cut; there is always a final zero. */
#ifndef SOLO_BASE_TEXT_H
#define SOLO_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct text {
    char *at;
    size_t left; /* bytes, the final zero counted */
};

static inline struct text text_of(char *buffer, size_t size)
{
    buffer[0] = 0;
    return (struct text){buffer, size};
}

static inline void text_add(struct text *text, const char *piece)
{
    while (*piece && text->left > 1) {
        *text->at++ = *piece++;
        text->left--;
    }
    *text->at = 0;
}

static inline void text_add_uint(struct text *text, uint64_t value)
{
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    text_add(text, digits + at);
}

static inline void text_add_hex(struct text *text, uint64_t value)
{
    for (int shift = 60; shift >= 0; shift -= 4) {
        char digit[2] = {"0123456789abcdef"[value >> shift & 15], 0};
        text_add(text, digit);
    }
}

/* The whole of `from` (NULL: nothing) as far as it fits. */
static inline void text_copy(char *buffer, size_t size, const char *from)
{
    struct text text = text_of(buffer, size);
    text_add(&text, from ? from : "");
}

#endif
