/* outbox.h - the frames of one connection that wait to be sent, as parts for one writev.
 *
 * Loop thread only. No system calls. */
#ifndef SOLO_OS_OUTBOX_H
#define SOLO_OS_OUTBOX_H

#include <sys/uio.h>

#include "os/conn.h"

struct outbox_entry {
    uint8_t header[FRAME_HEADER_BYTES];
    const void *payload; /* borrowed, or `copy` */
    void *copy;          /* NULL: borrowed */
    size_t size;
    uint64_t tag;
};

struct outbox {
    struct outbox_entry entries[CONN_SENDS_MAX];
    uint32_t first, count;
    size_t done;         /* bytes of the first entries that are out */
    size_t copied_bytes; /* of all copies that wait */
};

/* SOLO_EAGAIN: full. Takes `copy` on success. */
int outbox_push(struct outbox *outbox, const struct frame *frame, const void *payload, size_t size,
                uint64_t tag, void *copy);

/* What is to be written next, at most `max` parts; their count. */
int outbox_parts(struct outbox *outbox, struct iovec *parts, int max);

void outbox_advance(struct outbox *outbox, size_t bytes); /* these went out */

/* Takes off the next frame that is out whole; false: none. *borrowed_out: its payload is the
 * caller's again. */
bool outbox_next_sent(struct outbox *outbox, uint64_t *tag_out, bool *borrowed_out);

/* From now on nothing is borrowed from [base, base + size): frames from there go on from copies.
 * SOLO_ENOMEM: some still borrow. */
int outbox_forget(struct outbox *outbox, const void *base, size_t size);

void outbox_clear(struct outbox *outbox); /* frees the copies */

#endif
