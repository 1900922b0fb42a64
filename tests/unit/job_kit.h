/* job_kit.h - members of one round in one process: each with its own model and job; what links would
 * carry is copied. */
#ifndef SOLO_TESTS_JOB_KIT_H
#define SOLO_TESTS_JOB_KIT_H

#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "node/job.h"

#define WALK(step)                                                                                 \
    while (!(step)) {                                                                              \
    }

#define MEMBERS_MAX 4
#define TENSORS     7

static uint64_t counts[TENSORS] = {70000, 1, 0, 333, 130000, 5, 3};
static const enum solo_dtype dtypes[TENSORS] = {SOLO_F32, SOLO_F64, SOLO_F32, SOLO_BF16,
                                                SOLO_F32, SOLO_F32, SOLO_I64};
static const enum solo_role roles[TENSORS] = {SOLO_PARAM, SOLO_EXACT, SOLO_PARAM, SOLO_PARAM,
                                              SOLO_PARAM, SOLO_MEAN,  SOLO_MAX};

struct member {
    struct job job;
    void *data[TENSORS];
};
static struct member members[MEMBERS_MAX];
static uint32_t member_count;

static inline void open_members(uint32_t count, const char *codec, const char *rule)
{
    static const char *const names[TENSORS] = {"a", "b", "empty", "half", "big", "mean", "max"};
    struct solo_tensor tensors[TENSORS];
    member_count = count;
    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = (struct solo_tensor){names[i], counts[i], dtypes[i], roles[i]};
    }
    for (uint32_t m = 0; m < count; m++) {
        struct layout layout;
        struct job_config config = {.codec = codec};
        CHECK_EQ(rule_parse(rule, &config.rule), 0);
        CHECK_EQ(layout_init(&layout, tensors, TENSORS), 0);
        CHECK_EQ(job_open(&members[m].job, &layout, &config), 0);
        for (int i = 0; i < TENSORS; i++) {
            members[m].data[i] = calloc(counts[i] + 1, solo_dtype_bytes(dtypes[i]));
        }
        WALK(job_take_values(&members[m].job, members[m].data));
    }
}

static inline void close_members(void)
{
    for (uint32_t m = 0; m < member_count; m++) {
        job_close(&members[m].job);
        for (int i = 0; i < TENSORS; i++) {
            free(members[m].data[i]);
        }
    }
}

static inline float *floats(uint32_t m, int tensor)
{
    return members[m].data[tensor];
}

static inline void train(struct rng *rng)
{
    for (uint32_t m = 0; m < member_count; m++) {
        for (int t = 0; t < TENSORS; t++) {
            for (uint64_t i = 0; i < counts[t]; i++) {
                float step = (float)rng_below(rng, 2001) / 1000 - 1;
                if (dtypes[t] == SOLO_F32) {
                    floats(m, t)[i] += step;
                } else if (dtypes[t] == SOLO_F64) {
                    ((double *)members[m].data[t])[i] += step;
                } else if (dtypes[t] == SOLO_I64) {
                    ((int64_t *)members[m].data[t])[i] += 1 + m;
                } else {
                    ((uint16_t *)members[m].data[t])[i] = (uint16_t)(0x3f80 + 16 * m);
                }
            }
        }
    }
}

static inline void begin(uint32_t attempt_members, const float *weights, bool keep,
                         uint64_t version)
{
    for (uint32_t m = 0; m < attempt_members; m++) {
        struct job *job = &members[m].job;
        struct job_round round = {.slot = m, .keep_residuals = keep};
        CHECK_EQ(plan_init(&round.plan, &job->state_plan.model, attempt_members, PLAN_MESH), 0);
        for (uint32_t i = 0; i < attempt_members; i++) {
            round.weights[i] = weights ? weights[i] : 1.0f / (float)attempt_members;
        }
        round.step = rule_resolve(&job->rule, attempt_members, version, 0.1);
        CHECK_EQ(job_begin(job, &round, members[m].data), 0);
    }
}

static inline void encode_and_send(uint32_t from)
{
    struct job *job = &members[from].job;
    for (uint32_t chunk = 0; chunk < job->round.plan.chunk_count; chunk++) {
        CHECK_EQ(job_encode(job, chunk, NULL), 0);
        uint32_t owner = plan_owner(&job->round.plan, chunk), size;
        const void *bytes = job_delta(job, chunk, &size);
        if (owner != from) {
            void *room;
            CHECK_EQ(job_room_delta(&members[owner].job, from, chunk, size, &room), 0);
            memcpy(room, bytes, size);
            CHECK_EQ(job_take_delta(&members[owner].job, from, chunk, room), 0);
        }
    }
}

static inline void exchange(uint32_t count)
{
    for (uint32_t m = 0; m < count; m++) {
        if (members[0].job.round.weights[m] > 0) {
            encode_and_send(m);
        }
    }
    for (uint32_t owner = 0; owner < count; owner++) {
        struct job *job = &members[owner].job;
        for (uint32_t i = 0; i < job->own_count; i++) {
            uint32_t chunk = job->own_first + i, size;
            CHECK_EQ(job_reduce(job, chunk, NULL), 0);
            const void *bytes = job_mean(job, chunk, &size);
            for (uint32_t m = 0; m < count; m++) {
                void *room;
                if (m != owner) {
                    CHECK_EQ(job_room_mean(&members[m].job, chunk, size, &room), 0);
                    memcpy(room, bytes, size);
                    CHECK_EQ(job_take_mean(&members[m].job, chunk, room), 0);
                }
            }
        }
    }
}

static inline void apply(uint32_t count)
{
    for (uint32_t m = 0; m < count; m++) {
        CHECK(members[m].job.mean_digest == members[0].job.mean_digest);
        job_apply_begin(&members[m].job);
        while (!job_apply(&members[m].job)) {
        }
        CHECK(members[m].job.digest == members[0].job.digest);
        CHECK(members[m].job.digest == job_hash(&members[m].job));
        CHECK(memcmp(members[m].job.theta.base, members[0].job.theta.base,
                     members[0].job.theta.size) == 0);
    }
}

/* A round of two in which nothing waits: every chunk is made and used in a link's memory. */
static inline void exchange_in_place(void)
{
    static uint8_t delta[PLAN_CHUNK_ELEMENTS_MAX * 8], mean[PLAN_CHUNK_ELEMENTS_MAX * 8];
    const struct plan *plan = &members[0].job.round.plan;
    for (uint32_t chunk = 0; chunk < plan->chunk_count; chunk++) {
        uint32_t slot = plan_owner(plan, chunk), size;
        struct job *owner = &members[slot].job, *other = &members[1 - slot].job;
        CHECK_EQ(job_encode(other, chunk, delta), 0);
        CHECK(job_delta(other, chunk, &size) == delta);
        job_made_sent(other);
        CHECK(job_delta(other, chunk, &size) != delta);
        CHECK_EQ(job_take_delta(owner, 1 - slot, chunk, delta), 0);
        CHECK_EQ(job_reduce(owner, chunk, mean), 0);
        CHECK(job_mean(owner, chunk, &size) == mean);
        CHECK_EQ(job_take_mean(other, chunk, mean), 0);
        job_made_sent(owner);
    }
}

#endif
