/* Any bytes as the payload of any message: an error or a message; and what was read is written
 * again as the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct msg msg;
    static struct msg_members members;
    static struct msg_status status;
    static uint8_t back[FRAME_TABLE_MAX];
    if (size < 1) {
        return 0;
    }
    enum frame_type type = (enum frame_type)(data[0] % (FRAME_TYPE_COUNT + 1));
    if (type == FRAME_MEMBERS) {
        msg.table.members = &members;
    } else {
        msg.table.status = &status;
    }
    if (msg_decode(type, data + 1, size - 1, &msg) < 0) {
        return 0;
    }
    int written = msg_encode(&msg, back, sizeof back);
    if (written != (int)(size - 1) || memcmp(back, data + 1, size - 1) != 0) {
        abort();
    }
    return 0;
}
