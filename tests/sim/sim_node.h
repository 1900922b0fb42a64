/* sim_node.h - what the files of a simulated node share.
 *
 * sim_node.c    actions and what arrives: node/drive.c's counterpart
 * sim_work.c    the numbers: encoding, reducing, applying, what is sent
 * sim_script.c  the training script: attach, steps, merges, the end */
#ifndef SOLO_TESTS_SIM_NODE_H
#define SOLO_TESTS_SIM_NODE_H

#include "sim.h"

#define NO_CONN   UINT32_MAX
#define NO_SERIAL UINT32_MAX

struct span {
    uint32_t first, count; /* cells */
};

void work_send_chunk(struct world *world, struct sim_node *node, const struct action *action);
void work_send_state(struct world *world, struct sim_node *node, const struct action *action);
void work_round(struct world *world, struct sim_node *node);
void work_encode(struct world *world, struct sim_node *node, uint32_t chunk);
void work_reduce(struct world *world, struct sim_node *node, uint32_t chunk);
void work_apply(struct world *world, struct sim_node *node);
void work_drop(struct world *world, struct sim_node *node);
void work_adopt(struct world *world, struct sim_node *node, const struct action *action);
void work_save(struct world *world, struct sim_node *node);
void work_parked_free(struct sim_node *node);
struct span work_span(const struct world *world, const struct plan *plan, uint32_t chunk);
uint64_t sim_mix(uint64_t a, uint64_t b);
void script_joined(struct world *world, struct sim_node *node);
void script_complete(struct world *world, struct sim_node *node);
void script_due(struct world *world, struct sim_node *node, bool due);
void script_over(struct world *world, struct sim_node *node, int rc);
void script_turn(struct world *world, struct sim_node *node);
void node_feed(struct world *world, struct sim_node *node, struct member_event *event);

uint64_t *cells_new(const struct world *world);

#endif
