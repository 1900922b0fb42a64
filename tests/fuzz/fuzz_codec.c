/* Encoded bytes of a peer: codec_check lets nothing through that decodes to anything but finite
 * values, and no byte makes a kernel leave its arrays.
 *
 * Input: one byte for the codec, two for the count of elements, then the peer's bytes. */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "codec/codec.h"

#define COUNT_MAX 3000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"fp32", "bf16", "int8", "int4"};
    static float decoded[COUNT_MAX], anchor[COUNT_MAX], momentum[COUNT_MAX];
    if (size < 3) {
        return 0;
    }
    const struct codec *codec = NULL;
    MUST(codec_find(names[data[0] % 4], &codec) == 0);
    size_t count = ((size_t)data[1] | (size_t)data[2] << 8) % COUNT_MAX, left = size - 3;
    uint8_t *bytes = malloc(left + 1); /* its own block: reading past it is seen */
    MUST(bytes);
    for (size_t i = 0; i < left; i++) {
        bytes[i] = data[3 + i];
    }
    if (codec_check(codec, bytes, left, count) == 0) {
        codec_decode(codec, decoded, bytes, count);
        for (size_t i = 0; i < count; i++) {
            MUST(isfinite(decoded[i]));
        }
        struct vec_outer outer = outer_nesterov(0.7f, 0.9f);
        struct codec_step step = {bytes, &outer, anchor, momentum, NULL, count};
        codec_apply(codec, &step);
    }
    free(bytes);
    return 0;
}
