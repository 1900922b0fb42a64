#include "wire/frame.h"

#include "base/bytes.h"
#include "base/err.h"
#include "wire/crc32c.h"

#define FRAME_CRC_AT (FRAME_HEADER_BYTES - 4u)

static const struct {
    const char *name;
    uint32_t size_max;
} types[FRAME_TYPE_COUNT] = {
    [FRAME_JOIN] = {"JOIN", FRAME_MESSAGE_MAX},
    [FRAME_ADMIT] = {"ADMIT", FRAME_MESSAGE_MAX},
    [FRAME_REFUSE] = {"REFUSE", FRAME_MESSAGE_MAX},
    [FRAME_MEMBERS] = {"MEMBERS", FRAME_TABLE_MAX},
    [FRAME_READY] = {"READY", FRAME_MESSAGE_MAX},
    [FRAME_BEGIN] = {"BEGIN", FRAME_MESSAGE_MAX},
    [FRAME_DONE] = {"DONE", FRAME_MESSAGE_MAX},
    [FRAME_FAULT] = {"FAULT", FRAME_MESSAGE_MAX},
    [FRAME_COMMIT] = {"COMMIT", FRAME_MESSAGE_MAX},
    [FRAME_ABORT] = {"ABORT", FRAME_MESSAGE_MAX},
    [FRAME_SUMMON] = {"SUMMON", FRAME_MESSAGE_MAX},
    [FRAME_HEARTBEAT] = {"HEARTBEAT", FRAME_MESSAGE_MAX},
    [FRAME_HEARTBEAT_ACK] = {"HEARTBEAT_ACK", FRAME_MESSAGE_MAX},
    [FRAME_LEAVE] = {"LEAVE", FRAME_MESSAGE_MAX},
    [FRAME_CATCHUP] = {"CATCHUP", FRAME_MESSAGE_MAX},
    [FRAME_CAUGHT_UP] = {"CAUGHT_UP", FRAME_MESSAGE_MAX},
    [FRAME_END] = {"END", FRAME_MESSAGE_MAX},
    [FRAME_STATUS_ASK] = {"STATUS_ASK", FRAME_MESSAGE_MAX},
    [FRAME_STATUS] = {"STATUS", FRAME_TABLE_MAX},
    [FRAME_LINK] = {"LINK", FRAME_MESSAGE_MAX},
    [FRAME_DELTA] = {"DELTA", FRAME_CHUNK_MAX},
    [FRAME_MEAN] = {"MEAN", FRAME_CHUNK_MAX},
    [FRAME_FETCH] = {"FETCH", 0},
    [FRAME_STATE] = {"STATE", FRAME_CHUNK_MAX},
    [FRAME_NO_STATE] = {"NO_STATE", 0},
    [FRAME_GROUP] = {"GROUP", FRAME_GROUP_MAX},
};

enum reader_state {
    READER_HEADER,  /* the next bytes are the header's */
    READER_CHOICE,  /* the header is here: the consumer says where the payload goes */
    READER_PAYLOAD, /* into the consumer's memory */
    READER_SKIP,    /* into scratch */
};

int epoch_compare(struct epoch a, struct epoch b)
{
    if (a.incarnation != b.incarnation) {
        return a.incarnation < b.incarnation ? -1 : 1;
    }
    return a.counter == b.counter ? 0 : a.counter < b.counter ? -1 : 1;
}

uint32_t frame_size_max(enum frame_type type)
{
    return (unsigned)type < FRAME_TYPE_COUNT ? types[type].size_max : 0;
}

const char *frame_name(enum frame_type type)
{
    return (unsigned)type < FRAME_TYPE_COUNT && types[type].name ? types[type].name : "?";
}

uint32_t frame_crc(const void *payload, size_t size)
{
    return size ? crc32c(0, payload, size) : 0;
}

void frame_encode(const struct frame *frame, uint8_t *header)
{
    struct writer writer = writer_of(header, FRAME_HEADER_BYTES);
    write_uint(&writer, FRAME_MAGIC, 4);
    write_uint(&writer, SOLO_WIRE_VERSION, 2);
    write_uint(&writer, (uint64_t)frame->type, 1);
    write_uint(&writer, frame->flags, 1);
    write_uint(&writer, frame->epoch.incarnation, 8);
    write_uint(&writer, frame->epoch.counter, 4);
    write_uint(&writer, frame->attempt, 4);
    write_uint(&writer, frame->round, 8);
    write_uint(&writer, frame->chunk, 4);
    write_uint(&writer, frame->size, 4);
    write_uint(&writer, frame->extra, 8);
    write_uint(&writer, frame->payload_crc, 4);
    write_uint(&writer, 0, 8); /* reserved */
    write_uint(&writer, crc32c(0, header, FRAME_CRC_AT), 4);
    MUST(writer.ok && writer.at == writer.end);
}

static int frame_judge(const struct frame *frame)
{
    if ((unsigned)frame->type >= FRAME_TYPE_COUNT || !types[frame->type].name) {
        return err_set(SOLO_EPEER, "a frame of unknown type %u", (unsigned)frame->type);
    }
    if (frame->size > types[frame->type].size_max) {
        return err_set(SOLO_EPEER, "a %s frame of %u bytes: %u are allowed",
                       types[frame->type].name, frame->size, types[frame->type].size_max);
    }
    return 0;
}

int frame_decode(const uint8_t *header, struct frame *out)
{
    struct reader reader = reader_of(header, FRAME_HEADER_BYTES);
    if (read_u32(&reader) != FRAME_MAGIC) {
        return err_set(SOLO_EPEER,
                       "what came is not a frame of solo: it begins with "
                       "%02x %02x %02x %02x",
                       header[0], header[1], header[2], header[3]);
    }
    struct reader crc = reader_of(header + FRAME_CRC_AT, 4);
    if (read_u32(&crc) != crc32c(0, header, FRAME_CRC_AT)) {
        return err_set(SOLO_ECORRUPT, "a frame header's checksum is wrong");
    }
    uint16_t version = read_u16(&reader);
    if (version != SOLO_WIRE_VERSION) {
        return err_set(SOLO_EVERSION, "a frame of wire version %u: this side speaks %u", version,
                       SOLO_WIRE_VERSION);
    }
    struct frame frame = {.type = (enum frame_type)read_u8(&reader)};
    frame.flags = read_u8(&reader);
    frame.epoch.incarnation = read_u64(&reader);
    frame.epoch.counter = read_u32(&reader);
    frame.attempt = read_u32(&reader);
    frame.round = read_u64(&reader);
    frame.chunk = read_u32(&reader);
    frame.size = read_u32(&reader);
    frame.extra = read_u64(&reader);
    frame.payload_crc = read_u32(&reader);
    TRY(frame_judge(&frame));
    *out = frame;
    return 0;
}

void frame_reader_init(struct frame_reader *reader)
{
    reader->state = READER_HEADER;
    reader->got = 0;
    reader->into = NULL;
    reader->crc_so_far = 0;
}

struct frame_want frame_reader_want(struct frame_reader *reader)
{
    size_t left = 0;
    switch ((enum reader_state)reader->state) {
    case READER_HEADER:
        return (struct frame_want){reader->header + reader->got, FRAME_HEADER_BYTES - reader->got};
    case READER_CHOICE:
        return (struct frame_want){NULL, 0};
    case READER_PAYLOAD:
        left = reader->frame.size - reader->got;
        return (struct frame_want){left ? reader->into + reader->got : NULL, left};
    case READER_SKIP:
        left = reader->frame.size - reader->got;
        return (struct frame_want){reader->scratch,
                                   left < sizeof reader->scratch ? left : sizeof reader->scratch};
    }
    return (struct frame_want){NULL, 0};
}

static int feed_header(struct frame_reader *reader, size_t count)
{
    reader->got += (uint32_t)count;
    if (reader->got < FRAME_HEADER_BYTES) {
        return FRAME_MORE;
    }
    TRY(frame_decode(reader->header, &reader->frame));
    reader->unchecked = reader->frame.flags & FRAME_UNCHECKED;
    reader->frame.flags &= (uint8_t)~FRAME_UNCHECKED;
    reader->state = READER_CHOICE;
    reader->got = 0;
    return FRAME_HEADER;
}

static int wrong_checksum(const struct frame_reader *reader)
{
    return err_set(SOLO_ECORRUPT, "the checksum of a %s frame's payload is wrong",
                   frame_name(reader->frame.type));
}

static int feed_payload(struct frame_reader *reader, size_t count)
{
    bool skip = reader->state == READER_SKIP;
    if (!skip && !reader->unchecked && count) {
        reader->crc_so_far = crc32c(reader->crc_so_far, reader->into + reader->got, count);
    }
    reader->got += (uint32_t)count;
    if (reader->got < reader->frame.size) {
        return FRAME_MORE;
    }
    bool good = skip || reader->unchecked || reader->crc_so_far == reader->frame.payload_crc;
    frame_reader_init(reader);
    if (!good) {
        return wrong_checksum(reader);
    }
    return skip ? FRAME_SKIPPED : FRAME_PAYLOAD;
}

int frame_reader_feed(struct frame_reader *reader, size_t count)
{
    MUST(count <= frame_reader_want(reader).size);
    switch ((enum reader_state)reader->state) {
    case READER_HEADER:
        return feed_header(reader, count);
    case READER_CHOICE:
        return FRAME_MORE;
    case READER_PAYLOAD:
    case READER_SKIP:
        return feed_payload(reader, count);
    }
    return FRAME_MORE;
}

void frame_reader_into(struct frame_reader *reader, void *into)
{
    MUST(reader->state == READER_CHOICE);
    reader->into = (uint8_t *)into;
    reader->state = into || reader->frame.size == 0 ? READER_PAYLOAD : READER_SKIP;
}

int frame_reader_whole(struct frame_reader *reader, const void *payload)
{
    MUST(reader->state == READER_CHOICE);
    bool good =
        reader->unchecked || frame_crc(payload, reader->frame.size) == reader->frame.payload_crc;
    frame_reader_init(reader);
    return good ? FRAME_PAYLOAD : wrong_checksum(reader);
}

void frame_reader_divert(struct frame_reader *reader)
{
    if (reader->state == READER_PAYLOAD && reader->frame.size > 0) {
        reader->state = READER_SKIP;
        reader->into = NULL;
    }
}
