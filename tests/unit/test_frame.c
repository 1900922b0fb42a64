#include "check.h"
#include "wire/frame.h"

static struct frame sample(uint32_t size)
{
    return (struct frame){.type = FRAME_DELTA,
                          .flags = 3,
                          .epoch = {0x1122334455667788u, 9},
                          .round = 77,
                          .attempt = 2,
                          .chunk = 41,
                          .size = size,
                          .payload_crc = 0xdeadbeef,
                          .extra = 5};
}

TEST(a_header_comes_back_as_it_was_written)
{
    uint8_t header[FRAME_HEADER_BYTES];
    struct frame frame = sample(123), back;
    frame_encode(&frame, header);
    CHECK_EQ(frame_decode(header, &back), 0);
    CHECK_EQ(back.type, FRAME_DELTA);
    CHECK_EQ(back.flags, 3);
    CHECK_EQ(epoch_compare(back.epoch, frame.epoch), 0);
    CHECK_EQ(back.round, 77);
    CHECK_EQ(back.attempt, 2);
    CHECK_EQ(back.chunk, 41);
    CHECK_EQ(back.size, 123);
    CHECK_EQ(back.payload_crc, 0xdeadbeef);
    CHECK_EQ(back.extra, 5);
}

TEST(a_header_begins_with_solo_and_is_little_endian)
{
    uint8_t header[FRAME_HEADER_BYTES];
    struct frame frame = sample(0x01020304 & FRAME_CHUNK_MAX);
    frame.size = 0x10203;
    frame_encode(&frame, header);
    CHECK(memcmp(header, "SOLO", 4) == 0);
    CHECK_EQ(header[6], FRAME_DELTA);
    CHECK_EQ(header[8], 0x88);
    CHECK_EQ(header[36], 3);
    CHECK_EQ(header[38], 1);
}

TEST(any_changed_bit_of_a_header_is_found)
{
    uint8_t header[FRAME_HEADER_BYTES];
    struct frame frame = sample(123), back;
    for (uint32_t bit = 0; bit < 8 * FRAME_HEADER_BYTES; bit++) {
        frame_encode(&frame, header);
        header[bit / 8] = (uint8_t)(header[bit / 8] ^ 1u << bit % 8);
        CHECK(frame_decode(header, &back) < 0);
    }
}

TEST(a_length_over_its_types_limit_is_refused_by_name)
{
    uint8_t header[FRAME_HEADER_BYTES];
    struct frame back, frame = sample(FRAME_CHUNK_MAX + 1);
    frame_encode(&frame, header);
    CHECK_EQ(frame_decode(header, &back), SOLO_EPEER);
    CHECK_HAS(solo_error_text(), "DELTA");
    frame = sample(1);
    frame.type = FRAME_FETCH; /* has no payload at all */
    frame_encode(&frame, header);
    CHECK_EQ(frame_decode(header, &back), SOLO_EPEER);
}

TEST(an_unknown_type_is_refused)
{
    uint8_t header[FRAME_HEADER_BYTES];
    struct frame back, frame = sample(0);
    for (uint32_t type = 0; type < 256; type++) {
        frame.type = (enum frame_type)type;
        frame_encode(&frame, header);
        int known = strcmp(frame_name(frame.type), "?") != 0;
        CHECK_EQ(frame_decode(header, &back), known ? 0 : SOLO_EPEER);
    }
}

TEST(epochs_compare_by_incarnation_first)
{
    struct epoch a = {1, 9}, b = {2, 1}, c = {2, 2};
    CHECK(epoch_compare(a, b) < 0);
    CHECK(epoch_compare(c, b) > 0);
    CHECK_EQ(epoch_compare(b, b), 0);
}

/* Feeds bytes in pieces of `piece`; returns the last step. */
static int feed_all(struct frame_reader *reader, const uint8_t *bytes, size_t size, size_t piece,
                    uint8_t *into)
{
    int step = FRAME_MORE;
    while (size > 0) {
        struct frame_want want = frame_reader_want(reader);
        size_t count = want.size < piece ? want.size : piece;
        count = count < size ? count : size;
        if (count > 0) {
            memcpy(want.at, bytes, count);
        }
        bytes += count;
        size -= count;
        step = frame_reader_feed(reader, count);
        if (step == FRAME_HEADER) {
            frame_reader_into(reader, into);
        }
        if (step < 0) {
            return step;
        }
    }
    return step;
}

static size_t make(uint8_t *bytes, const char *payload)
{
    struct frame frame = sample((uint32_t)strlen(payload));
    frame.payload_crc = frame_crc(payload, strlen(payload));
    frame_encode(&frame, bytes);
    memcpy(bytes + FRAME_HEADER_BYTES, payload, strlen(payload));
    return FRAME_HEADER_BYTES + strlen(payload);
}

TEST(a_payload_arrives_in_its_place_however_the_bytes_are_cut)
{
    uint8_t bytes[128], into[64];
    size_t size = make(bytes, "a payload");
    for (size_t piece = 1; piece < size; piece++) {
        struct frame_reader reader;
        frame_reader_init(&reader);
        memset(into, 0, sizeof into);
        CHECK_EQ(feed_all(&reader, bytes, size, piece, into), FRAME_PAYLOAD);
        CHECK(memcmp(into, "a payload", 9) == 0);
        CHECK_EQ(frame_reader_want(&reader).size, FRAME_HEADER_BYTES);
    }
}

TEST(a_changed_payload_is_told_and_the_next_frame_is_still_read)
{
    uint8_t bytes[128], into[64];
    size_t size = make(bytes, "a payload");
    bytes[size - 1] ^= 1;
    struct frame_reader reader;
    frame_reader_init(&reader);
    CHECK_EQ(feed_all(&reader, bytes, size, 16, into), SOLO_ECORRUPT);
    size = make(bytes, "good");
    CHECK_EQ(feed_all(&reader, bytes, size, 16, into), FRAME_PAYLOAD);
}

TEST(a_skipped_payload_writes_nowhere)
{
    uint8_t bytes[128];
    size_t size = make(bytes, "a payload");
    struct frame_reader reader;
    frame_reader_init(&reader);
    CHECK_EQ(feed_all(&reader, bytes, size, 7, NULL), FRAME_SKIPPED);
}

TEST(a_diverted_payload_is_not_written_any_further)
{
    uint8_t bytes[128], into[64] = {0};
    size_t size = make(bytes, "a payload");
    struct frame_reader reader;
    frame_reader_init(&reader);
    CHECK_EQ(feed_all(&reader, bytes, FRAME_HEADER_BYTES + 2, 256, into), FRAME_MORE);
    frame_reader_divert(&reader);
    size_t rest = size - FRAME_HEADER_BYTES - 2;
    CHECK_EQ(feed_all(&reader, bytes + FRAME_HEADER_BYTES + 2, rest, 256, into), FRAME_SKIPPED);
    CHECK_EQ(into[1], ' ');
    CHECK_EQ(into[2], 0);
}

TEST(a_frame_without_payload_ends_with_a_feed_of_nothing)
{
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame frame = {.type = FRAME_FETCH};
    frame_encode(&frame, bytes);
    struct frame_reader reader;
    frame_reader_init(&reader);
    CHECK_EQ(feed_all(&reader, bytes, sizeof bytes, 64, NULL), FRAME_HEADER);
    CHECK_EQ(frame_reader_want(&reader).size, 0);
    CHECK_EQ(frame_reader_feed(&reader, 0), FRAME_PAYLOAD);
}

TEST(sixty_four_zero_bytes_are_no_frame)
{
    uint8_t bytes[FRAME_HEADER_BYTES] = {0}, into[1];
    struct frame_reader reader;
    frame_reader_init(&reader);
    CHECK_EQ(feed_all(&reader, bytes, sizeof bytes, 64, into), SOLO_EPEER);
}
