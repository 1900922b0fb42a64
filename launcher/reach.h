/* reach.h - from this node to the master: waiting for it, and what its answer means. */
#ifndef LAUNCHER_REACH_H
#define LAUNCHER_REACH_H

#include "launch.h"

/* Waits until the master answers and this node may join; says at once and every 10 s what it
 * waits for. Fails at once on what time does not heal, else after --timeout. */
struct finding reach_master(struct launch *launch);

/* The same of one that was just there; warns at once if it has ended: nobody else starts another. */
struct finding reach_running_master(struct launch *launch);

/* Waits until the master's name resolves. */
struct finding reach_name(struct launch *launch);

/* Asks once, for at most timeout_ms; the answer is judged only if `joins`. */
struct finding reach_once(struct launch *launch, uint32_t timeout_ms, struct solo_status *status,
                          bool joins);

/* Whether the answer of a reached master lets this node join. Pure but for the host's name. */
struct finding reach_judge(const struct launch *launch, const struct solo_status *status);

/* Warns if the clock of a reached master is another than ours; else as `reached` says. */
struct finding reach_clock(const struct launch *launch, const struct solo_status *status,
                           struct finding reached);

uint64_t reach_now_ms(void);

#endif
