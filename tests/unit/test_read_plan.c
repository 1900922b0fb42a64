#include "base/rng.h"
#include "check.h"
#include "ckpt/read_plan.h"

/* Each wanted byte is in exactly one piece, and pieces do not overlap. */
TEST(pieces_cover_every_wanted_byte_once)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rng rng = {seed};
        struct solo_ckpt_read reads[40] = {0};
        uint8_t seen[20000] = {0}, want[20000] = {0};
        uint64_t at = rng_below(&rng, 100);
        size_t count = 1 + rng_below(&rng, 39);
        for (size_t i = 0; i < count; i++) {
            reads[i].offset = at;
            reads[i].bytes = rng_below(&rng, 300);
            memset(want + at, 1, reads[i].bytes);
            at += reads[i].bytes + rng_below(&rng, 200);
        }
        struct read_plan plan;
        CHECK_EQ(
            read_plan_make(reads, count, rng_below(&rng, 150), 1 + rng_below(&rng, 700), &plan), 0);
        const struct read_plan_piece *pieces = plan.pieces.items;
        for (size_t i = 0; i < plan.pieces.count; i++) {
            for (uint64_t byte = 0; byte < pieces[i].bytes; byte++) {
                CHECK_EQ(seen[pieces[i].offset + byte]++, 0);
            }
            const struct solo_ckpt_read *last = plan.order[pieces[i].first + pieces[i].count - 1];
            CHECK(pieces[i].count > 0 && last->offset < pieces[i].offset + pieces[i].bytes);
        }
        for (size_t byte = 0; byte < sizeof want; byte++) {
            CHECK(!want[byte] || seen[byte] == 1);
        }
        read_plan_free(&plan);
    }
}

TEST(reads_may_come_in_any_order_and_overlap)
{
    struct solo_ckpt_read reads[] = {{.offset = 50, .bytes = 10},
                                     {.offset = 0, .bytes = 10},
                                     {.offset = 50, .bytes = 10},
                                     {.offset = 7, .bytes = 0}};
    struct read_plan plan;
    CHECK_EQ(read_plan_make(reads, 4, 0, 4096, &plan), 0);
    CHECK_EQ(plan.count, 3);
    CHECK_EQ(plan.pieces.count, 3);
    CHECK_EQ(plan.bytes, 30);
    read_plan_free(&plan);
}

TEST(a_read_beyond_any_file_is_refused)
{
    struct solo_ckpt_read read = {.offset = UINT64_MAX - 5, .bytes = 10};
    struct read_plan plan;
    CHECK_EQ(read_plan_make(&read, 1, 0, 4096, &plan), SOLO_EINVAL);
}
