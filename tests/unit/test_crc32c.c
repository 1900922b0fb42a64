#include "wire/crc32c.h"

#include "base/rng.h"
#include "check.h"

TEST(gives_the_checksums_of_rfc_3720)
{
    uint8_t bytes[32];
    CHECK_EQ(crc32c(0, "123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof bytes);
    CHECK_EQ(crc32c(0, bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    CHECK_EQ(crc32c(0, bytes, sizeof bytes), 0x62a8ab43);
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    CHECK_EQ(crc32c(0, bytes, sizeof bytes), 0x46dd794e);
    CHECK_EQ(crc32c(7, NULL, 0), 7);
}

static uint8_t *noise(size_t size)
{
    struct rng rng = {1};
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)rng_next(&rng);
    }
    return bytes;
}

TEST(equals_the_table_at_every_length_and_alignment)
{
    uint8_t *bytes = noise(20000);
    for (size_t offset = 0; offset < 9; offset++) {
        for (size_t size = 0; size < 1700; size++) {
            CHECK_EQ(crc32c(5, bytes + offset, size), crc32c_truth(5, bytes + offset, size));
        }
    }
    for (size_t size = 6000; size < 20000; size += 97) { /* long lanes, then short ones */
        CHECK_EQ(crc32c(0, bytes, size), crc32c_truth(0, bytes, size));
    }
    free(bytes);
}

TEST(goes_on_where_it_stopped)
{
    uint8_t *bytes = noise(10000);
    uint32_t whole = crc32c(0, bytes, 10000);
    for (size_t cut = 0; cut <= 10000; cut += 11) {
        CHECK_EQ(crc32c(crc32c(0, bytes, cut), bytes + cut, 10000 - cut), whole);
    }
    free(bytes);
}
