#include "check.h"
#include "ckpt/scan.h"

static int skips(const char *text)
{
    struct scan json = scan_of(text, strlen(text));
    return scan_skip(&json) && scan_end(&json);
}

TEST(any_json_value_can_be_skipped)
{
    CHECK(skips("{\"a\": [1, -2.5e3, \"x\\\"y\", true, null, {}], \"b\": {}}"));
    CHECK(skips("[]"));
    CHECK(!skips("[1 2]"));
    CHECK(!skips("[1,]"));
    CHECK(!skips("[1}"));
    CHECK(!skips("{\"a\":1]"));
    CHECK(!skips("{\"a\" 1}"));
    CHECK(!skips("{a: 1}"));
    CHECK(!skips("\"open"));
    CHECK(!skips("[] x"));
    CHECK(!skips("tru"));
}

TEST(depth_is_bounded)
{
    char text[4096];
    memset(text, '[', sizeof text);
    struct scan json = scan_of(text, sizeof text);
    CHECK(!scan_skip(&json));
    CHECK_HAS(json.what, "too deep");
}

static int number(const char *text, uint64_t *out)
{
    struct scan json = scan_of(text, strlen(text));
    return scan_uint(&json, out);
}

TEST(a_count_is_digits_alone)
{
    uint64_t value = 0;
    CHECK(number("18446744073709551615", &value));
    CHECK(value == UINT64_MAX);
    CHECK(number("0", &value));
    CHECK(!number("18446744073709551616", &value));
    CHECK(!number("-1", &value));
    CHECK(!number("1.0", &value));
    CHECK(!number("1e3", &value));
    CHECK(!number("01", &value));
    CHECK(!number("", &value));
}

static size_t decoded(const char *text, char *out)
{
    return scan_decode((struct scan_text){(const uint8_t *)text, strlen(text)}, out);
}

TEST(escapes_become_utf8)
{
    char out[64];
    CHECK_EQ(decoded("a\\n\\u00e9\\ud83d\\ude00", out), 8);
    CHECK(memcmp(out, "a\n\xc3\xa9\xf0\x9f\x98\x80", 8) == 0);
    CHECK(decoded("\\ud800", out) == SIZE_MAX);
    CHECK(decoded("\\udc00", out) == SIZE_MAX);
    CHECK(decoded("\\u12", out) == SIZE_MAX);
    CHECK(decoded("\\x", out) == SIZE_MAX);
}

TEST(broken_utf8_is_told)
{
    CHECK(scan_is_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10));
    CHECK(!scan_is_utf8("\xc0\x80", 2));         /* overlong */
    CHECK(!scan_is_utf8("\xed\xa0\x80", 3));     /* a surrogate */
    CHECK(!scan_is_utf8("\xf4\x90\x80\x80", 4)); /* beyond Unicode */
    CHECK(!scan_is_utf8("\xe2\x82", 2));
}
