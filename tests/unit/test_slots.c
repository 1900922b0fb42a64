#include "check.h"
#include "ckpt/slots.h"

#define NAME_BYTES 68u
#define STAGES     17u

/* Either half of each leaves FNV-1a as the other half does: 2^17 names of one hash. */
static const char *const halves[STAGES] = {
    "h0rRTGVI", "WBZis3Jp", "PGKhl0aa", "M6vqa9ZJ", "TJAkx9gb", "N5FFjNbA",
    "o8TVSOHY", "W8oqs9Ej", "uOugQ6oh", "18SMgGxy", "s5f1oJzJ", "5jhvC5Wj",
    "Jsv682gB", "E3LV9BxO", "j9WOF6qV", "fvfi47Gu", "mEINA2gw",
};

static size_t hostile(uint32_t number, char *out)
{
    for (uint32_t i = 0; i < STAGES; i++) {
        memcpy(out + (size_t)4 * i, halves[i] + 4 * (number >> i & 1), 4);
    }
    return NAME_BYTES;
}

static size_t plain(uint32_t number, char *out)
{
    return (size_t)snprintf(out, NAME_BYTES, "%u", number);
}

typedef size_t (*name_fn)(uint32_t number, char *out);

static bool same(const void *table, uint32_t row, const char *name, size_t size)
{
    char text[NAME_BYTES + 1];
    name_fn fn = *(const name_fn *)table;
    return fn(row, text) == size && memcmp(text, name, size) == 0;
}

/* How many of the first `count` names are taken before looking is over. */
static uint32_t fill(struct slots *slots, name_fn fn, uint32_t count)
{
    char text[NAME_BYTES + 1];
    for (uint32_t i = 0; i < count; i++) {
        size_t size = fn(i, text);
        if (slots_find(slots, same, &fn, text, size) != SLOTS_NONE) {
            return i;
        }
        CHECK_EQ(slots_add(slots, i, text, size), 0);
    }
    return count;
}

TEST(every_name_is_found_at_its_row_and_no_other_is)
{
    struct slots slots = {0};
    name_fn fn = plain;
    char text[NAME_BYTES + 1];
    CHECK_EQ(slots_find(&slots, same, &fn, "7", 1), SLOTS_NONE);
    CHECK_EQ(fill(&slots, plain, 300000), 300000);
    for (uint32_t i = 0; i < 300000; i += 77) {
        size_t size = plain(i, text);
        CHECK_EQ(slots_find(&slots, same, &fn, text, size), i);
    }
    CHECK_EQ(slots_find(&slots, same, &fn, "300000", 6), SLOTS_NONE);
    slots_free(&slots);
}

TEST(names_that_are_made_to_collide_end_the_looking_soon)
{
    struct slots slots = {0};
    CHECK(fill(&slots, hostile, 1u << STAGES) < 1000);
    slots_free(&slots);
}
