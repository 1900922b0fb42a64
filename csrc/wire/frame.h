/* frame.h - what travels on every connection: a header of FRAME_HEADER_BYTES, then a payload.
 *
 * The header says what follows, for which round, and how long it is; its own CRC is checked
 * before anything in it is believed, and the length is held against the limit of its type
 * before anything is received or allocated. Byte tables: docs/wire.md.
 *
 * Pure: no allocation, any thread, one reader per connection. */
#ifndef SOLO_WIRE_FRAME_H
#define SOLO_WIRE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "solo.h"

#define FRAME_MAGIC        0x4f4c4f53u /* "SOLO" in byte order */
#define FRAME_HEADER_BYTES 64u
#define FRAME_MESSAGE_MAX  16384u      /* payload of one control message */
#define FRAME_TABLE_MAX    262144u     /* payload of MEMBERS and STATUS: a row per member */
#define FRAME_CHUNK_MAX    (4u << 20)  /* payload of a DELTA, MEAN or STATE frame */
#define FRAME_GROUP_MAX    (64u << 20) /* payload of a collective's frame (comm) */

/* The number is the wire's; 0 is never sent. Control messages are in msg.h. */
enum frame_type {
    FRAME_JOIN = 1,       /* member -> master: who I am, what I run, what I hold */
    FRAME_ADMIT = 2,      /* master -> member: you are in; lease, incarnation */
    FRAME_REFUSE = 3,     /* master -> member: no, and why */
    FRAME_MEMBERS = 4,    /* master -> member: the epoch and its list */
    FRAME_READY = 5,      /* member -> master: I am at my boundary */
    FRAME_BEGIN = 6,      /* master -> member: exchange now */
    FRAME_DONE = 7,       /* member -> master: I hold the whole mean */
    FRAME_FAULT = 8,      /* member -> master: this attempt cannot end well, because */
    FRAME_COMMIT = 9,     /* master -> member: the verdict */
    FRAME_ABORT = 10,     /* master -> member: the verdict */
    FRAME_SUMMON = 11,    /* master -> member: the others are ready, merge at your next step */
    FRAME_HEARTBEAT = 12, /* member -> master */
    FRAME_HEARTBEAT_ACK = 13,
    FRAME_LEAVE = 14,     /* member -> master: goodbye */
    FRAME_CATCHUP = 15,   /* master -> member: take this version from these donors */
    FRAME_CAUGHT_UP = 16, /* member -> master: I hold it */
    FRAME_END = 17,       /* master -> member: the job is over */
    FRAME_STATUS_ASK = 18,
    FRAME_STATUS = 19,
    FRAME_LINK = 20,     /* first on a data connection: whose it is */
    FRAME_DELTA = 32,    /* encoded chunk of a member's delta, to its owner */
    FRAME_MEAN = 33,     /* encoded chunk of the mean, from its owner */
    FRAME_FETCH = 34,    /* joiner -> donor: chunk of this version, please; no payload */
    FRAME_STATE = 35,    /* donor -> joiner: here */
    FRAME_NO_STATE = 36, /* donor -> joiner: I do not hold that version; no payload */
    FRAME_GROUP = 48,    /* a collective of a fixed world (comm) */
    FRAME_TYPE_COUNT = 49,
};

enum frame_flags {
    FRAME_MOMENTUM = 1,    /* FETCH, STATE, NO_STATE: outer momentum, not the anchor */
    FRAME_UNCHECKED = 128, /* payload_crc is 0 and not compared: memory of one host */
};

/* (incarnation of the master, counter): of the member list. Later epochs compare greater. */
struct epoch {
    uint64_t incarnation;
    uint32_t counter;
};

struct frame {
    enum frame_type type;
    uint8_t flags;
    struct epoch epoch;
    uint64_t round; /* FETCH, STATE, NO_STATE: the version */
    uint32_t attempt;
    uint32_t chunk;
    uint32_t size;        /* payload bytes */
    uint32_t payload_crc; /* CRC-32C of the payload; 0 for none */
    uint64_t extra;       /* free for the type (comm: tag and sequence) */
};

int epoch_compare(struct epoch a, struct epoch b); /* < 0, 0, > 0 */

/* Largest payload of a type; 0 also for types that have none or are unknown. */
uint32_t frame_size_max(enum frame_type type);
const char *frame_name(enum frame_type type); /* "JOIN"; "?" if unknown */

/* Writes FRAME_HEADER_BYTES. The caller has set size and payload_crc (frame_crc). */
void frame_encode(const struct frame *frame, uint8_t *header);
uint32_t frame_crc(const void *payload, size_t size);

/* Reads and judges one header. SOLO_EPEER: not ours, unknown type, or too long for its type;
 * SOLO_EVERSION: another wire version; SOLO_ECORRUPT: its CRC is wrong. The text says which,
 * and *out is set only on success. */
int frame_decode(const uint8_t *header, struct frame *out);

/* One connection's reader. The transport reads straight into where the reader points:
 *
 *     struct frame_want want = frame_reader_want(&reader);  // where, how many bytes at most
 *     count = read(fd, want.at, want.size);
 *     rc = frame_reader_feed(&reader, count);  // reader.frame is the frame
 *     // FRAME_MORE: go on. FRAME_HEADER: choose where the payload goes, then
 *     //   frame_reader_into(&reader, destination)   or   (&reader, NULL): skip it.
 *     // FRAME_PAYLOAD: the frame is whole; its CRC was checked. < 0: close the connection.
 *
 * A frame without payload gives FRAME_HEADER, then FRAME_PAYLOAD from the next feed of 0.
 * A skipped payload is read into the reader's own scratch and not checked. */
enum frame_step { FRAME_MORE = 0, FRAME_HEADER = 1, FRAME_PAYLOAD = 2, FRAME_SKIPPED = 3 };

struct frame_want {
    uint8_t *at;
    size_t size; /* 0: the consumer has to say where the payload goes first, or feed 0 */
};

struct frame_reader {
    uint8_t header[FRAME_HEADER_BYTES];
    struct frame frame;  /* valid from FRAME_HEADER on */
    uint8_t *into;       /* destination of the payload; NULL with skip */
    uint32_t got;        /* bytes of the header or payload so far */
    uint32_t crc_so_far; /* of the payload, kept while it arrives */
    bool unchecked;      /* FRAME_UNCHECKED was set; `frame` does not show it */
    int state;           /* enum reader_state of frame.c */
    uint8_t scratch[4096];
};

void frame_reader_init(struct frame_reader *reader);
struct frame_want frame_reader_want(struct frame_reader *reader);
/* SOLO_ECORRUPT also for a payload whose CRC is wrong: the reader is then at the next header,
 * so the caller may go on or close. */
int frame_reader_feed(struct frame_reader *reader, size_t count);
/* Borrows `into` (frame.size bytes) until FRAME_PAYLOAD, an error, or frame_reader_divert. */
void frame_reader_into(struct frame_reader *reader, void *into);
/* After FRAME_HEADER, instead of frame_reader_into: the whole payload lies at `payload`. As
 * frame_reader_feed after its last byte. */
int frame_reader_whole(struct frame_reader *reader, const void *payload);
/* The rest of the payload in progress is skipped; nothing more is written to `into`. */
void frame_reader_divert(struct frame_reader *reader);

#endif
