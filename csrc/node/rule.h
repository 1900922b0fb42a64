/* rule.h - the rule by which the mean delta moves the anchor, and its values in one round.
 *
 * Text: "avg", "slowmo", "nesterov", with "lr=..,beta=..,ramp=.." after ':' (ramp: rounds over
 * which beta grows from 0). Sources: nesterov arXiv:2311.08105 with the rate by member count
 * of arXiv:2503.09799; slowmo arXiv:1910.00643. Pure: all members resolve the same bits. */
#ifndef SOLO_NODE_RULE_H
#define SOLO_NODE_RULE_H

#include <stddef.h>
#include <stdint.h>

enum rule_kind { RULE_AVG, RULE_SLOWMO, RULE_NESTEROV };

#define RULE_TEXT_MAX     64u
#define RULE_RAMP_DEFAULT 10u

struct rule {
    enum rule_kind kind;
    double lr; /* 0: by the number of members (nesterov) */
    double beta;
    uint32_t ramp;
};

/* The values of one round. avg: lr is 1 and the rest 0. gamma: the members' mean inner
 * learning rate (slowmo alone), > 0. */
struct rule_step {
    enum rule_kind kind;
    float lr, beta, gamma;
};

/* NULL or "": avg. SOLO_EINVAL with a text on how to write it. */
int rule_parse(const char *text, struct rule *out);

/* The one spelling of a rule, which nodes compare. */
void rule_text(const struct rule *rule, char *text, size_t size);

/* The step from `version` on, with `members` contributing. `lr_mean`: mean inner rate over
 * their steps, 0 if unknown (slowmo then takes 1: the same rule with momentum in units of
 * the delta). */
struct rule_step rule_resolve(const struct rule *rule, uint32_t members, uint64_t version,
                              double lr_mean);

/* 1: the rule keeps a momentum. */
int rule_has_momentum(const struct rule *rule);

/* 1: inner SGD momentum is to be zeroed after each merge (slowmo). */
int rule_zeroes_inner(const struct rule *rule);

#endif
