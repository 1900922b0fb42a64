#include "ckpt/faults.h"

#include <stdlib.h>
#include <string.h>

int faults_take(struct faults *faults, enum solo_ckpt_fault_code code, uint64_t offset, int rc)
{
    if (!faults->kept) {
        faults->kept = calloc(FAULTS_KEPT, sizeof *faults->kept);
    }
    if (faults->kept && faults->count < FAULTS_KEPT) {
        struct solo_ckpt_fault *fault = &faults->kept[faults->count];
        fault->code = code;
        fault->offset = offset;
        memcpy(fault->text, err_text(), sizeof fault->text);
    }
    faults->count++;
    return rc;
}

void faults_free(struct faults *faults)
{
    free(faults->kept);
    *faults = (struct faults){0};
}

const char *faults_name(const void *name, size_t size)
{
    static _Thread_local char rooms[4][100];
    static _Thread_local unsigned turn;
    char *room = rooms[turn++ % 4];
    const unsigned char *bytes = name;
    size_t used = 0;
    for (size_t i = 0; i < size && used < sizeof rooms[0] - 4; i++) {
        room[used++] = bytes[i] >= 0x20 && bytes[i] != 0x7f ? (char)bytes[i] : '?';
    }
    if (size > used) {
        memcpy(room + used, "...", 3);
        used += 3;
    }
    room[used] = 0;
    return room;
}

uint64_t add_capped(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

uint64_t multiply_capped(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
