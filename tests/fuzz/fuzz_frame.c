/* Any bytes, in pieces of a size that the first byte says, into a frame reader: no crash, no
 * write outside the room that a header asked for. A second reading with the header's checksums
 * made right reaches what lies behind them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/frame.h"

static void read_all(const uint8_t *bytes, size_t size, size_t piece)
{
    struct frame_reader reader;
    uint8_t *room = NULL;
    frame_reader_init(&reader);
    for (int step = FRAME_MORE; size > 0 && step >= 0;) {
        struct frame_want want = frame_reader_want(&reader);
        size_t count = want.size < piece ? want.size : piece;
        count = count < size ? count : size;
        if (count > 0) {
            memcpy(want.at, bytes, count);
        }
        bytes += count;
        size -= count;
        step = frame_reader_feed(&reader, count);
        if (step == FRAME_HEADER) {
            if (reader.frame.size > frame_size_max(reader.frame.type)) {
                abort();
            }
            free(room);
            room = reader.frame.chunk % 3 ? malloc(reader.frame.size) : NULL;
            frame_reader_into(&reader, room);
            if (reader.frame.chunk % 5 == 0) {
                frame_reader_divert(&reader);
            }
        }
    }
    free(room);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    size_t piece = 1u + data[0];
    read_all(data + 1, size - 1, piece);
    if (size > FRAME_HEADER_BYTES) {
        uint8_t *copy = malloc(size);
        struct frame frame = {
            .type = (enum frame_type)(data[1] % FRAME_TYPE_COUNT),
            .chunk = data[2],
            .size = (uint32_t)(size - FRAME_HEADER_BYTES),
            .payload_crc =
                data[3] % 2 ? frame_crc(data + FRAME_HEADER_BYTES, size - FRAME_HEADER_BYTES) : 0};
        memcpy(copy, data, size);
        frame_encode(&frame, copy);
        read_all(copy, size, piece);
        free(copy);
    }
    return 0;
}
