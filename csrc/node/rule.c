#include "node/rule.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "solo.h"

static const char *const names[] = {"avg", "slowmo", "nesterov"};
static const char how[] = "write avg, slowmo or nesterov, for example nesterov:lr=0.4,beta=0.9";

/* A script may have set a locale that writes 0,4: the rule's text is the same everywhere. */
static locale_t plain_numbers(void)
{
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    return plain ? uselocale(plain) : (locale_t)0;
}

static void former_numbers(locale_t before)
{
    if (before) {
        freelocale(uselocale(before));
    }
}

static double read_number(const char *text, char **end)
{
    locale_t before = plain_numbers();
    double value = strtod(text, end);
    former_numbers(before);
    return value;
}

static int parse_value(const char *text, struct rule *rule)
{
    if (strcmp(text, "lr=auto") == 0 && rule->kind == RULE_NESTEROV) {
        rule->lr = 0;
        return 0;
    }
    char *end = NULL;
    const char *equals = strchr(text, '=');
    double value = equals ? read_number(equals + 1, &end) : 0;
    if (!equals || end == equals + 1 || *end || !isfinite(value)) {
        return err_set(SOLO_EINVAL, "outer step: '%.40s' is not NAME=NUMBER; %s", text, how);
    }
    if (strncmp(text, "lr=", 3) == 0 && value > 0 && value <= 10) {
        rule->lr = value;
    } else if (strncmp(text, "beta=", 5) == 0 && (value == 0 || value >= 0.001) && value < 1) {
        rule->beta = value;
    } else if (strncmp(text, "ramp=", 5) == 0 && value >= 0 && value <= 1e6) {
        rule->ramp = (uint32_t)value;
    } else {
        return err_set(SOLO_EINVAL,
                       "outer step: '%.40s': 0 < lr <= 10, beta of 0 or 0.001 to below 1, "
                       "ramp >= 0 (rounds) are known",
                       text);
    }
    return 0;
}

static int parse_kind(const char *text, size_t length, struct rule *rule)
{
    for (int kind = RULE_AVG; kind <= RULE_NESTEROV; kind++) {
        if (strlen(names[kind]) == length && memcmp(text, names[kind], length) == 0) {
            rule->kind = (enum rule_kind)kind;
            return 0;
        }
    }
    return err_set(SOLO_EINVAL, "outer step '%.40s' is unknown: %s", text, how);
}

int rule_parse(const char *text, struct rule *out)
{
    struct rule rule = {.kind = RULE_AVG, .lr = 1};
    if (!text || !text[0]) {
        *out = rule;
        return 0;
    }
    char copy[RULE_TEXT_MAX];
    if (strlen(text) >= sizeof copy) {
        return err_set(SOLO_EINVAL, "outer step '%.40s...' is too long: %s", text, how);
    }
    memcpy(copy, text, strlen(text) + 1);
    TRY(parse_kind(copy, strcspn(copy, ":"), &rule));
    if (rule.kind != RULE_AVG) {
        rule.lr = rule.kind == RULE_SLOWMO ? 1 : 0;
        rule.beta = rule.kind == RULE_SLOWMO ? 0.5 : 0.9;
        rule.ramp = RULE_RAMP_DEFAULT;
    }
    char *values = strchr(copy, ':');
    if (values && rule.kind == RULE_AVG) {
        return err_set(SOLO_EINVAL, "outer step avg takes no values: %s", how);
    }
    char *rest = NULL;
    for (char *value = values ? strtok_r(values + 1, ",", &rest) : NULL; value;
         value = strtok_r(NULL, ",", &rest)) {
        TRY(parse_value(value, &rule));
    }
    *out = rule;
    return 0;
}

void rule_text(const struct rule *rule, char *text, size_t size)
{
    char lr[24] = "auto";
    locale_t before = plain_numbers();
    if (rule->lr > 0) {
        snprintf(lr, sizeof lr, "%g", rule->lr);
    }
    if (rule->kind == RULE_AVG) {
        snprintf(text, size, "avg");
    } else {
        snprintf(text, size, "%s:lr=%s,beta=%g,ramp=%u", names[rule->kind], lr, rule->beta,
                 rule->ramp);
    }
    former_numbers(before);
}

int solo_outer_text(const char *text, char *out, size_t size)
{
    struct rule rule = {0};
    TRY(rule_parse(text, &rule));
    rule_text(&rule, out, size);
    return 0;
}

/* A fit through the published best rates 0.4, 0.75 and 1.0 at 2, 8 and 16 members; the square
 * root is exact to the last bit on every machine. */
static double lr_by_members(uint32_t members)
{
    double lr = 0.28 * sqrt((double)members);
    return lr < 0.3 ? 0.3 : lr > 1.0 ? 1.0 : lr;
}

struct rule_step rule_resolve(const struct rule *rule, uint32_t members, uint64_t version,
                              double lr_mean)
{
    if (rule->kind == RULE_AVG) {
        return (struct rule_step){RULE_AVG, 1, 0, 0};
    }
    double beta = rule->beta;
    if (version + 1 < rule->ramp) { /* from the first round on more than 0: m is kept from then */
        beta = beta * (double)(version + 1) / (double)rule->ramp;
    }
    double lr = rule->lr > 0 ? rule->lr : lr_by_members(members);
    double gamma = 0;
    if (rule->kind == RULE_SLOWMO) {
        gamma = lr_mean > 0 && isfinite(lr_mean) ? lr_mean : 1;
    }
    return (struct rule_step){rule->kind, (float)lr, (float)beta, (float)gamma};
}

int rule_has_momentum(const struct rule *rule)
{
    return rule->kind != RULE_AVG && rule->beta > 0;
}

int rule_zeroes_inner(const struct rule *rule)
{
    return rule->kind == RULE_SLOWMO;
}
