/* utf8.h - which bytes are UTF-8 (RFC 3629, section 4). Pure. */
#ifndef SOLO_BASE_UTF8_H
#define SOLO_BASE_UTF8_H

#include <stddef.h>

/* Bytes of the character that begins at `at`, 1 to 4; 0: none does within `left` bytes. */
size_t utf8_length(const void *at, size_t left);

#endif
