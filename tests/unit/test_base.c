#include "base/bytes.h"
#include "base/err.h"
#include "check.h"

TEST(an_error_keeps_its_text_and_name)
{
    CHECK_EQ(err_set(SOLO_EPEER, "peer %d said %s", 3, "no"), SOLO_EPEER);
    CHECK_STR(solo_error_text(), "peer 3 said no");
    CHECK_STR(solo_error_name(SOLO_EPEER), "SOLO_EPEER");
    CHECK_STR(solo_error_name(SOLO_ENOENT), "SOLO_ENOENT");
    CHECK_STR(solo_error_name(-99), "SOLO_E?");
}

TEST(an_error_text_may_hold_the_text_before_it)
{
    err_set(SOLO_EPEER, "inner");
    err_set(SOLO_EPEER, "outer: %s", err_text());
    CHECK_STR(solo_error_text(), "outer: inner");
}

TEST(a_reader_that_ran_out_stays_at_fault)
{
    const uint8_t bytes[] = {1, 2, 3};
    struct reader reader = reader_of(bytes, sizeof bytes);
    CHECK_EQ(read_u16(&reader), 0x0201);
    CHECK_EQ(read_u32(&reader), 0);
    CHECK(!reader.ok);
    CHECK_EQ(read_u8(&reader), 0);
}

TEST(a_text_that_does_not_fit_is_a_fault)
{
    uint8_t bytes[16];
    struct writer writer = writer_of(bytes, sizeof bytes);
    write_text(&writer, "hello");
    CHECK(writer.ok);
    char text[4];
    struct reader reader = reader_of(bytes, sizeof bytes);
    read_text(&reader, text, sizeof text);
    CHECK(!reader.ok);
    char room[6];
    reader = reader_of(bytes, sizeof bytes);
    read_text(&reader, room, sizeof room);
    CHECK(reader.ok);
    CHECK_STR(room, "hello");
}
