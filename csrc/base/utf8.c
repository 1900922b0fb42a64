#include "base/utf8.h"

#include <stdint.h>

/* The table of RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
size_t utf8_length(const void *at, size_t left)
{
    const uint8_t *byte = at;
    if (left == 0) {
        return 0;
    }
    uint8_t lead = byte[0];
    if (lead < 0x80) {
        return 1;
    }
    size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                    : lead >= 0xe0 && lead < 0xf0 ? 3
                    : lead >= 0xf0 && lead < 0xf5 ? 4
                                                  : 0;
    if (length == 0 || length > left) {
        return 0;
    }
    if ((lead == 0xe0 && byte[1] < 0xa0) || (lead == 0xed && byte[1] > 0x9f) ||
        (lead == 0xf0 && byte[1] < 0x90) || (lead == 0xf4 && byte[1] > 0x8f)) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((byte[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}
