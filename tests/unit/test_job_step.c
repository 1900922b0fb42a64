#include "job_kit.h"

#define LARGE 1300000u /* elements of a tensor: then chunks are as large as blocks */

/* A model large enough for chunks that are blocks, whose digests are had on the way: `apply`
 * compares them with those calculated anew. */
TEST(chunks_that_are_blocks_give_the_anchors_digest_on_the_way)
{
    struct rng rng = {31};
    uint64_t usual = counts[4];
    counts[4] = LARGE;
    open_members(2, "fp32", "nesterov");
    for (uint64_t round = 0; round < 2; round++) {
        train(&rng);
        begin(2, NULL, round > 0, round);
        CHECK_EQ(members[0].job.round.plan.chunk_elements, JOB_BLOCK_ELEMENTS);
        if (round == 0) {
            exchange(2);
        } else {
            exchange_in_place();
        }
        apply(2);
    }
    close_members();
    counts[4] = usual;
}

/* As if the model were larger than the caches: where values are plain, one pass then does what else
 * is done step by step. */
static uint64_t digest_of_rounds(const char *rule, bool in_one_pass)
{
    struct rng rng = {41};
    open_members(2, "fp32", rule);
    for (uint32_t m = 0; m < 2; m++) {
        members[m].job.stream = in_one_pass;
    }
    for (uint64_t round = 0; round < 2; round++) {
        train(&rng);
        begin(2, (const float[]){0.25f, 0.75f}, round > 0, round);
        exchange_in_place();
        apply(2);
    }
    uint64_t digest = members[0].job.digest;
    close_members();
    return digest;
}

TEST(one_pass_over_a_large_model_gives_the_bits_of_its_steps)
{
    uint64_t usual = counts[4];
    counts[4] = LARGE;
    CHECK_EQ(digest_of_rounds("avg", true), digest_of_rounds("avg", false));
    CHECK_EQ(digest_of_rounds("nesterov", true), digest_of_rounds("nesterov", false));
    counts[4] = usual;
}

/* In a tile that is not its chunk's first: those take the way of single steps anyway. */
#define LATER 20000u

TEST(one_pass_tells_whose_value_is_not_finite)
{
    static float mean[PLAN_CHUNK_ELEMENTS_MAX];
    uint64_t usual = counts[4], first = counts[0]; /* the flat space begins with tensors 0, 3, 4 */
    counts[4] = LARGE;
    open_members(2, "fp32", "avg");
    members[0].job.stream = true;
    struct job *job = &members[0].job;
    begin(2, NULL, false, 0);
    uint32_t of_other = job->round.plan.chunk_count / 2 + 1;
    CHECK(!job_owns(job, of_other));
    floats(0, 4)[of_other * JOB_BLOCK_ELEMENTS + LATER - first - counts[3]] = NAN;
    CHECK_EQ(job_encode(job, of_other, mean), SOLO_ENONFINITE);
    CHECK_STR(solo_error_text(), "big");
    floats(0, 0)[LATER] = NAN;
    encode_and_send(1);
    CHECK_EQ(job_reduce(job, 0, mean), SOLO_ENONFINITE);
    CHECK_STR(solo_error_text(), "a");
    memset(mean, 0, sizeof mean);
    CHECK_EQ(job_take_mean(job, of_other, mean), 0);
    mean[LATER] = INFINITY;
    CHECK_EQ(job_take_mean(job, of_other, mean), SOLO_EPEER);
    close_members();
    counts[4] = usual;
}
