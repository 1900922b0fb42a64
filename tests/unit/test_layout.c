#include "node/layout.h"

#include "check.h"

static const struct solo_tensor model[] = {
    {"steps", 1, SOLO_I64, SOLO_MAX},    {"conv.weight", 100, SOLO_F32, SOLO_PARAM},
    {"empty", 0, SOLO_F32, SOLO_PARAM},  {"conv.bias", 4, SOLO_F32, SOLO_EXACT},
    {"running", 4, SOLO_F32, SOLO_MEAN}, {"fc.weight", 50, SOLO_BF16, SOLO_PARAM},
    {"seen", 3, SOLO_BOOL, SOLO_MAX},
};
#define COUNT (sizeof model / sizeof *model)

TEST(sections_follow_each_other_and_tensors_keep_their_order)
{
    struct layout layout;
    CHECK_EQ(layout_init(&layout, model, COUNT), 0);
    CHECK_EQ(layout.tensor_count, 6);
    CHECK_EQ(layout.section_start[0], 0);
    CHECK_EQ(layout.section_start[1], 150);
    CHECK_EQ(layout.section_start[2], 154);
    CHECK_EQ(layout.section_start[3], 158);
    CHECK_EQ(layout.section_start[4], 162);
    CHECK_EQ(layout_floats(&layout), 158);
    CHECK_EQ(layout_integers(&layout), 4);
    CHECK_EQ(layout.place[2], LAYOUT_NONE);
    CHECK_STR(layout.tensors[layout.place[5]].name, "fc.weight");
    CHECK_EQ(layout.tensors[layout.place[5]].start, 100);
    CHECK_HAS(layout.words, "7 tensors");
    CHECK_HAS(layout.words, "50 bfloat16");
    layout_deinit(&layout);
}

TEST(a_range_falls_into_runs_of_tensors)
{
    struct layout layout;
    CHECK_EQ(layout_init(&layout, model, COUNT), 0);
    struct layout_run run = layout_run_at(&layout, 90, 30);
    CHECK_EQ(run.tensor->index, 1);
    CHECK_EQ(run.offset, 90);
    CHECK_EQ(run.count, 10);
    run = layout_run_at(&layout, 100, 20);
    CHECK_EQ(run.tensor->index, 5);
    CHECK_EQ(run.offset, 0);
    CHECK_EQ(run.count, 20);
    run = layout_run_at(&layout, 161, 1);
    CHECK_EQ(run.tensor->index, 6);
    CHECK_EQ(run.offset, 2);
    layout_deinit(&layout);
}

TEST(another_name_count_dtype_or_role_gives_another_hash)
{
    struct layout a, b;
    CHECK_EQ(layout_init(&a, model, COUNT), 0);
    for (int what = 0; what < 4; what++) {
        struct solo_tensor other[COUNT];
        memcpy(other, model, sizeof model);
        switch (what) {
        case 0:
            other[3].name = "conv.bia";
            break;
        case 1:
            other[2].count = 1;
            break;
        case 2:
            other[1].dtype = SOLO_F16;
            break;
        default:
            other[1].role = SOLO_EXACT;
        }
        CHECK_EQ(layout_init(&b, other, COUNT), 0);
        CHECK(a.hash != b.hash);
        layout_deinit(&b);
    }
    layout_deinit(&a);
}

TEST(a_model_of_nothing_and_one_of_thousands_of_single_elements_are_fine)
{
    struct layout layout;
    CHECK_EQ(layout_init(&layout, NULL, 0), 0);
    CHECK_EQ(layout_elements(&layout), 0);
    layout_deinit(&layout);
    enum { MANY = 5000 };
    static struct solo_tensor many[MANY];
    static char names[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "p%d", i);
        many[i] = (struct solo_tensor){names[i], 1, SOLO_F32, SOLO_PARAM};
    }
    CHECK_EQ(layout_init(&layout, many, MANY), 0);
    for (uint64_t i = 0; i < MANY; i++) {
        struct layout_run run = layout_run_at(&layout, i, MANY - i);
        CHECK_EQ(run.tensor->index, i);
        CHECK_EQ(run.count, 1);
    }
    layout_deinit(&layout);
}

TEST(a_role_that_a_dtype_cannot_have_is_told_by_name)
{
    struct layout layout;
    struct solo_tensor bad[] = {{"counter", 1, SOLO_I64, SOLO_PARAM}};
    CHECK_EQ(layout_init(&layout, bad, 1), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), "counter is int64");
    bad[0] = (struct solo_tensor){"w", 1, SOLO_F32, SOLO_MAX};
    CHECK_EQ(layout_init(&layout, bad, 1), SOLO_EINVAL);
    struct solo_tensor twice[] = {{"w", 1, SOLO_F32, SOLO_PARAM}, {"w", 2, SOLO_F32, SOLO_EXACT}};
    CHECK_EQ(layout_init(&layout, twice, 2), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), "two tensors of the model are named w");
}
