#include "check.h"
#include "protocol/plan.h"

static struct plan_model model_of(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return (struct plan_model){{a, b, c, d}};
}

static void check_plan(const struct plan *plan)
{
    uint64_t seen[PLAN_SECTIONS] = {0};
    for (uint32_t i = 0; i < plan->chunk_count; i++) {
        struct plan_chunk chunk = plan_chunk(plan, i);
        CHECK(chunk.elements > 0 && chunk.elements <= plan->chunk_elements);
        CHECK_EQ(chunk.first, seen[chunk.section]);
        seen[chunk.section] += chunk.elements;
        uint32_t owner = plan_owner(plan, i);
        CHECK(owner < plan->members);
        CHECK(i >= plan_owned_first(plan, owner));
        CHECK(i < plan_owned_first(plan, owner) + plan_owned_count(plan, owner));
    }
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        CHECK_EQ(seen[i], plan->model.elements[i]);
    }
}

TEST(chunks_cover_every_element_once_and_have_one_owner)
{
    struct plan_model models[] = {model_of(0, 0, 0, 0),       model_of(1, 0, 0, 0),
                                  model_of(1000, 3, 0, 7),    model_of(0, 0, 0, 1),
                                  model_of(256, 256, 256, 1), model_of(3000000, 900, 5, 2)};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (uint32_t members = 1; members <= SOLO_MEMBERS_MAX; members += members < 9 ? 1 : 49) {
            struct plan plan;
            CHECK_EQ(plan_init(&plan, &models[i], members, PLAN_MESH), 0);
            check_plan(&plan);
            CHECK_EQ(plan.chunk_elements % PLAN_CHUNK_ELEMENTS_MIN, 0);
            CHECK(plan.chunk_count <= plan_chunks_max(&models[i]));
            CHECK_EQ(plan_init(&plan, &models[i], members, PLAN_STAR), 0);
            check_plan(&plan);
        }
    }
}

TEST(every_owner_has_its_share)
{
    struct plan_model model = model_of(10000000, 0, 0, 0);
    struct plan plan;
    CHECK_EQ(plan_init(&plan, &model, 7, PLAN_MESH), 0);
    for (uint32_t slot = 0; slot < 7; slot++) {
        CHECK(plan_owned_count(&plan, slot) >= plan.chunk_count / 7);
        CHECK(plan_owned_count(&plan, slot) <= plan.chunk_count / 7 + 1);
    }
}

TEST(a_section_begins_a_chunk)
{
    struct plan_model model = model_of(300, 10, 0, 5);
    struct plan plan;
    CHECK_EQ(plan_init(&plan, &model, 1, PLAN_MESH), 0);
    CHECK_EQ(plan.chunk_count, 4);
    CHECK_EQ(plan_chunk(&plan, 1).elements, 44);
    CHECK_EQ(plan_chunk(&plan, 2).section, SOLO_EXACT);
    CHECK_EQ(plan_chunk(&plan, 3).section, SOLO_MAX);
}

TEST(what_an_owner_parks_stays_within_its_limit)
{
    struct plan_model model = model_of(1u << 30, 0, 0, 0);
    for (uint32_t members = 2; members <= 32; members++) {
        struct plan plan;
        CHECK_EQ(plan_init(&plan, &model, members, PLAN_MESH), 0);
        CHECK(plan.window >= 2);
        uint64_t parked = (uint64_t)plan.window * (members - 1) * plan.chunk_elements * 4;
        CHECK(parked <= PLAN_PARK_BYTES || plan.window == 2);
    }
}

TEST(a_model_that_is_too_large_is_refused)
{
    struct plan_model model = model_of(UINT64_MAX / 2, UINT64_MAX / 2, 5, 5);
    struct plan plan;
    CHECK_EQ(plan_init(&plan, &model, 2, PLAN_MESH), SOLO_ELIMIT);
    CHECK_EQ(plan_init_state(&plan, &model), SOLO_ELIMIT);
}

TEST(deadlines_follow_from_bytes_and_rate)
{
    CHECK_EQ(plan_transfer_us(0, 0, 5), 5);
    CHECK_EQ(plan_transfer_us(2000000, 1000000, 0), 6000000);
    CHECK(plan_transfer_us(UINT64_MAX / 8, 1000000000, 0) > 0);
}
