#include "protocol/plan.h"

#include "base/err.h"

static uint64_t element_bytes(uint32_t section)
{
    return section == SOLO_MAX ? 8 : 4;
}

static uint32_t chunk_elements_of(const struct plan_model *model, uint32_t owners)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        all += model->elements[i];
    }
    uint64_t parts = (uint64_t)owners * PLAN_CHUNKS_PER_OWNER;
    uint64_t elements = all / parts + (all % parts != 0);
    elements = (elements + PLAN_CHUNK_ELEMENTS_MIN - 1) / PLAN_CHUNK_ELEMENTS_MIN;
    elements *= PLAN_CHUNK_ELEMENTS_MIN;
    if (elements < PLAN_CHUNK_ELEMENTS_MIN) {
        return PLAN_CHUNK_ELEMENTS_MIN;
    }
    bool many = all / PLAN_CHUNK_ELEMENTS > PLAN_CHUNKS_WANTED;
    uint32_t most = many ? PLAN_CHUNK_ELEMENTS_MAX : PLAN_CHUNK_ELEMENTS;
    return elements > most ? most : (uint32_t)elements;
}

static int cut(struct plan *plan)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        plan->first_chunk[i] = (uint32_t)count;
        uint64_t elements = plan->model.elements[i];
        count += elements / plan->chunk_elements + (elements % plan->chunk_elements != 0);
        if (count > PLAN_CHUNKS_MAX) {
            return err_set(SOLO_ELIMIT, "the model has more than %u chunks of %u elements",
                           PLAN_CHUNKS_MAX, plan->chunk_elements);
        }
    }
    plan->first_chunk[PLAN_SECTIONS] = (uint32_t)count;
    plan->chunk_count = (uint32_t)count;
    return 0;
}

int plan_init(struct plan *plan, const struct plan_model *model, uint32_t members,
              enum plan_owners owners)
{
    MUST(members >= 1);
    *plan = (struct plan){.model = *model, .members = members, .owners = owners};
    plan->chunk_elements = chunk_elements_of(model, members);
    uint64_t others = members > 1 ? members - 1 : 1;
    uint64_t window = PLAN_PARK_BYTES / (4 * (uint64_t)plan->chunk_elements * others);
    plan->window = window < 2 ? 2 : window > 64 ? 64 : (uint32_t)window;
    return cut(plan);
}

int plan_init_state(struct plan *plan, const struct plan_model *model)
{
    *plan = (struct plan){.model = *model, .members = 1, .owners = PLAN_STAR, .window = 2};
    plan->chunk_elements = PLAN_CHUNK_ELEMENTS_MAX;
    return cut(plan);
}

struct plan_chunk plan_chunk(const struct plan *plan, uint32_t index)
{
    uint32_t section = 0;
    while (section < PLAN_SECTIONS - 1 && index >= plan->first_chunk[section + 1]) {
        section++;
    }
    uint64_t first = (uint64_t)(index - plan->first_chunk[section]) * plan->chunk_elements;
    uint64_t left = plan->model.elements[section] - first;
    uint32_t elements = left < plan->chunk_elements ? (uint32_t)left : plan->chunk_elements;
    return (struct plan_chunk){(enum solo_role)section, first, elements};
}

uint32_t plan_owned_first(const struct plan *plan, uint32_t slot)
{
    if (plan->owners == PLAN_STAR) {
        return slot == 0 ? 0 : plan->chunk_count;
    }
    return (uint32_t)((uint64_t)plan->chunk_count * slot / plan->members);
}

uint32_t plan_owned_count(const struct plan *plan, uint32_t slot)
{
    if (plan->owners == PLAN_STAR) {
        return slot == 0 ? plan->chunk_count : 0;
    }
    return plan_owned_first(plan, slot + 1) - plan_owned_first(plan, slot);
}

uint32_t plan_owner(const struct plan *plan, uint32_t index)
{
    if (plan->owners == PLAN_STAR) {
        return 0;
    }
    /* The greatest slot whose run begins at or before index. */
    uint64_t next = (uint64_t)index + 1;
    uint64_t slot = (next * plan->members - 1) / plan->chunk_count;
    return (uint32_t)(slot < plan->members ? slot : plan->members - 1);
}

uint32_t plan_chunks_max(const struct plan_model *model)
{
    struct plan plan;
    if (plan_init(&plan, model, SOLO_MEMBERS_MAX, PLAN_MESH) < 0) {
        return PLAN_CHUNKS_MAX;
    }
    /* More members, smaller chunks: the largest count has the most of them. */
    return plan.chunk_count;
}

uint64_t plan_bytes(const struct plan_model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        bytes += model->elements[i] * element_bytes(i);
    }
    return bytes;
}

uint64_t plan_transfer_us(uint64_t bytes, uint64_t bytes_per_second, uint64_t floor_us)
{
    uint64_t rate = bytes_per_second ? bytes_per_second : PLAN_RATE_FLOOR;
    uint64_t seconds = bytes / rate;
    uint64_t rest_us = bytes % rate * 1000000u / rate;
    return floor_us + 3 * (seconds * 1000000u + rest_us);
}
