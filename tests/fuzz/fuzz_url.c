/* Any text: parsed or refused; what was parsed is parsed again to the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "solo.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char text[1024], again[SOLO_NAME_MAX + 32];
    struct solo_url url, same;
    if (size >= sizeof text) {
        return 0;
    }
    if (size) {
        memcpy(text, bytes, size);
    }
    text[size] = 0;
    solo_is_loopback(text);
    if (solo_url_parse(text, &url) < 0) {
        return 0;
    }
    snprintf(again, sizeof again, strchr(url.host, ':') ? "tcp://[%s]:%u" : "tcp://%s:%u", url.host,
             url.port);
    if (url.port == 0 || solo_url_parse(again, &same) < 0 || strcmp(url.host, same.host) != 0 ||
        url.port != same.port) {
        abort();
    }
    return 0;
}
