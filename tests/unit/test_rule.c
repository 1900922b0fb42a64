#include "node/rule.h"

#include <math.h>

#include "check.h"

static struct rule rule_of(const char *text)
{
    struct rule rule;
    CHECK_EQ(rule_parse(text, &rule), 0);
    return rule;
}

TEST(nothing_said_is_plain_averaging)
{
    struct rule rule = rule_of(NULL);
    CHECK_EQ(rule.kind, RULE_AVG);
    CHECK(!rule_has_momentum(&rule));
    struct rule_step step = rule_resolve(&rule, 5, 100, 0.1);
    CHECK(step.lr == 1 && step.beta == 0);
}

TEST(two_spellings_of_a_rule_have_one_text)
{
    char a[RULE_TEXT_MAX], b[RULE_TEXT_MAX];
    struct rule rule = rule_of("nesterov:beta=0.90,lr=.4");
    rule_text(&rule, a, sizeof a);
    rule = rule_of("nesterov:lr=0.4");
    rule_text(&rule, b, sizeof b);
    CHECK_STR(a, b);
    CHECK_STR(a, "nesterov:lr=0.4,beta=0.9,ramp=10");
    rule = rule_of(a);
    rule_text(&rule, b, sizeof b);
    CHECK_STR(a, b);
    rule = rule_of("nesterov:lr=auto");
    rule_text(&rule, a, sizeof a);
    CHECK_STR(a, "nesterov:lr=auto,beta=0.9,ramp=10");
}

TEST(the_rate_grows_with_the_members_within_its_bounds)
{
    struct rule rule = rule_of("nesterov");
    CHECK(rule_resolve(&rule, 1, 50, 0).lr == 0.3f);
    CHECK(fabsf(rule_resolve(&rule, 2, 50, 0).lr - 0.396f) < 1e-3f);
    CHECK(fabsf(rule_resolve(&rule, 4, 50, 0).lr - 0.56f) < 1e-3f);
    CHECK(rule_resolve(&rule, 200, 50, 0).lr == 1.0f);
}

TEST(momentum_grows_over_its_ramp)
{
    struct rule rule = rule_of("nesterov:beta=0.9,ramp=10");
    CHECK(rule_resolve(&rule, 2, 0, 0).beta == 0.09f);
    CHECK(rule_resolve(&rule, 2, 4, 0).beta == 0.45f);
    CHECK(rule_resolve(&rule, 2, 10, 0).beta == 0.9f);
    CHECK(rule_resolve(&rule, 2, 1000, 0).beta == 0.9f);
    rule = rule_of("nesterov:ramp=0");
    CHECK(rule_resolve(&rule, 2, 0, 0).beta == 0.9f);
}

TEST(slowmo_takes_the_inner_rate_and_zeroes_inner_momentum)
{
    struct rule rule = rule_of("slowmo");
    CHECK(rule_zeroes_inner(&rule));
    struct rule_step step = rule_resolve(&rule, 4, 20, 0.25);
    CHECK(step.lr == 1.0f && step.beta == 0.5f && step.gamma == 0.25f);
    CHECK(rule_resolve(&rule, 4, 20, 0).gamma == 1.0f);
}

TEST(what_is_not_a_rule_is_told_with_what_is_one)
{
    const char *const bad[] = {"sgd",           "nesterov:lr=0",   "nesterov:lr",
                               "slowmo:beta=1", "nesterov:mu=0.9", "avg:lr=1",
                               "nesterov:lr=x", "nesterov:lr=nan"};
    struct rule rule;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(rule_parse(bad[i], &rule), SOLO_EINVAL);
        CHECK_HAS(solo_error_text(), "outer step");
    }
}
