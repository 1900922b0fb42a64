#include "node/events.h"

#include "check.h"

TEST(a_line_is_json_whatever_is_in_its_texts)
{
    char line[256];
    struct json json = json_begin(line, sizeof line);
    json_text(&json, "text", "a \"quoted\"\\\n\x01 word");
    json_u64(&json, "number", UINT64_MAX);
    json_millionths(&json, "time", 1500000);
    json_hex(&json, "digest", 255);
    size_t length = json_end(&json);
    CHECK_STR(line, "{\"text\": \"a \\\"quoted\\\"\\\\\\u000a\\u0001 word\", "
                    "\"number\": 18446744073709551615, \"time\": 1.500000, "
                    "\"digest\": \"00000000000000ff\"}");
    CHECK_EQ(length, strlen(line));
}

TEST(letters_of_any_language_stay_and_bytes_that_are_none_are_marked)
{
    char line[256];
    struct json json = json_begin(line, sizeof line);
    json_text(&json, "whole",
              "n\xc3\xb8"
              "de \xf0\x9f\x98\x80");
    json_text(&json, "broken", "cut \xc3\xb8\xe2\x82");
    json_end(&json);
    CHECK_STR(line, "{\"whole\": \"n\xc3\xb8"
                    "de \xf0\x9f\x98\x80\", "
                    "\"broken\": \"cut \xc3\xb8\\ufffd\\ufffd\"}");
}

TEST(a_field_without_room_is_left_out_whole)
{
    char line[24];
    struct json json = json_begin(line, sizeof line);
    json_u64(&json, "a", 1);
    json_text(&json, "b", "much too long for it");
    json_u64(&json, "c", 2);
    json_end(&json);
    CHECK_STR(line, "{\"a\": 1}");
}

TEST(the_latest_events_are_kept_and_the_lost_ones_counted)
{
    static struct events events;
    events_init(&events);
    char line[64];
    CHECK_EQ(events_next(&events, line, sizeof line), 0);
    for (uint32_t i = 0; i < EVENTS_MAX + 3; i++) {
        snprintf(line, sizeof line, "{\"i\": %u}", i);
        events_put(&events, line);
    }
    CHECK(events_next(&events, line, sizeof line) > 0);
    CHECK_STR(line, "{\"i\": 3, \"dropped\": 3}");
    CHECK(events_next(&events, line, sizeof line) > 0);
    CHECK_STR(line, "{\"i\": 4}");
    CHECK(events_next(&events, line, 5) == 0);
    events_deinit(&events);
}
