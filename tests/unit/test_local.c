#include "comm/local.h"

#include "check.h"
#include "comm/op.h"

static struct solo_part part;

static struct solo_op in_place(void *bytes, uint64_t count, enum solo_dtype dtype,
                               enum solo_reduce reduce)
{
    part = (struct solo_part){bytes, count};
    return (struct solo_op){.kind = SOLO_OP_ALLREDUCE,
                            .dtype = dtype,
                            .reduce = reduce,
                            .factor = 0.5,
                            .in = &part,
                            .out = &part,
                            .in_count = 1,
                            .out_count = 1};
}

TEST(the_sum_and_mean_of_one_rank_in_place_are_what_it_has)
{
    float values[3] = {1.5f, -2.0f, 3.0f};
    struct solo_op sum = in_place(values, 3, SOLO_F32, SOLO_REDUCE_SUM);
    local_run(&sum);
    struct solo_op mean = in_place(values, 3, SOLO_F32, SOLO_REDUCE_AVG);
    local_run(&mean);
    CHECK(values[0] == 1.5f && values[1] == -2.0f && values[2] == 3.0f);
}

TEST(one_rank_still_multiplies_by_its_factor)
{
    float values[3] = {1.5f, -2.0f, 3.0f};
    struct solo_op op = in_place(values, 3, SOLO_F32, SOLO_REDUCE_PREMUL);
    local_run(&op);
    CHECK(values[0] == 0.75f && values[1] == -1.0f && values[2] == 1.5f);
}

TEST(a_bool_of_one_rank_becomes_0_or_1)
{
    uint8_t values[3] = {0, 1, 7};
    struct solo_op op = in_place(values, 3, SOLO_BOOL, SOLO_REDUCE_SUM);
    local_run(&op);
    CHECK(values[0] == 0 && values[1] == 1 && values[2] == 1);
}

TEST(another_tensor_receives_the_sum_of_one_rank)
{
    float values[3] = {1.5f, -2.0f, 3.0f}, out[3] = {0};
    struct solo_op op = in_place(values, 3, SOLO_F32, SOLO_REDUCE_SUM);
    struct solo_part to = {out, 3};
    op.out = &to;
    local_run(&op);
    CHECK(out[0] == 1.5f && out[1] == -2.0f && out[2] == 3.0f);
}
