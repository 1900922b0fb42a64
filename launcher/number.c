#include "number.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text.h"

bool number_count(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    if (!isdigit((unsigned char)text[0])) {
        return false; /* strtoull takes signs and blanks */
    }
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end || errno || value < min || value > max) {
        return false;
    }
    *out = value;
    return true;
}

bool number_next(const char **at, int base, uint64_t *out)
{
    const char *digits = *at + strspn(*at, " \t");
    char *end;
    if (!isxdigit((unsigned char)*digits)) {
        return false;
    }
    errno = 0;
    *out = strtoull(digits, &end, base);
    *at = end;
    return end != digits && errno == 0;
}

bool number_bool(const char *text, bool *out)
{
    static const char *const words[][2] = {
        {"0", "1"}, {"false", "true"}, {"no", "yes"}, {"off", "on"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        for (int is = 0; is < 2; is++) {
            if (strcasecmp(text, words[i][is]) == 0) {
                *out = is == 1;
                return true;
            }
        }
    }
    return false;
}

/* A plain decimal number with its unit left in *unit; no sign, no exponent, no hex. */
static bool decimal(const char *text, double *value, const char **unit)
{
    size_t count = strspn(text, "0123456789.");
    if (count == 0 || count > 20 || !isdigit((unsigned char)text[0])) {
        return false;
    }
    char digits[24] = {0};
    memcpy(digits, text, count);
    char *end;
    *value = strtod(digits, &end);
    *unit = text + count;
    return *end == 0;
}

bool number_ms(const char *text, uint32_t *out)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 6e4}, {"min", 6e4}, {"h", 3.6e6}};
    double value;
    const char *unit;
    if (!decimal(text, &value, &unit)) {
        return false;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        double ms = value * units[i].ms;
        if (strcmp(unit, units[i].unit) == 0 && ms >= 1 && ms <= 2e9) {
            *out = (uint32_t)ms;
            return true;
        }
    }
    return false;
}

bool number_bytes(const char *text, uint64_t *out)
{
    double value;
    const char *unit;
    if (!decimal(text, &value, &unit)) {
        return false;
    }
    double scale = 1;
    if (*unit && strcasecmp(unit, "B") != 0) {
        const char *letters = "kmgt";
        const char *at = strchr(letters, tolower((unsigned char)*unit));
        if (!at) {
            return false;
        }
        bool decimal_unit = strcasecmp(unit + 1, "B") == 0;
        if (!decimal_unit && unit[1] && strcasecmp(unit + 1, "iB") != 0) {
            return false;
        }
        for (const char *letter = letters; letter <= at; letter++) {
            scale *= decimal_unit ? 1000 : 1024;
        }
    }
    if (value * scale < 1 || value * scale > 1e18) {
        return false;
    }
    *out = (uint64_t)(value * scale);
    return true;
}

static bool schedule_entry(const char *text, size_t count, uint64_t *step, uint64_t *interval)
{
    char entry[48] = {0};
    if (count >= sizeof entry) {
        return false;
    }
    memcpy(entry, text, count);
    char *colon = strchr(entry, ':');
    if (!colon) {
        return false;
    }
    *colon = 0;
    return number_count(entry, 0, UINT64_MAX, step) &&
           number_count(colon + 1, 0, UINT32_MAX, interval);
}

bool number_schedule(const char *text, const char **why)
{
    static const char zero[] = "an interval is at least 1 step";
    uint64_t interval, step, last = 0;
    if (number_count(text, 0, UINT32_MAX, &interval)) {
        *why = zero;
        return interval > 0;
    }
    bool first = true;
    for (const char *at = text;; first = false) {
        size_t count = strcspn(at, ",");
        if (!schedule_entry(at, count, &step, &interval)) {
            *why = "it is neither a number nor STEP:INTERVAL,STEP:INTERVAL,...";
            return false;
        }
        if (interval == 0) {
            *why = zero;
            return false;
        }
        if (first ? step != 0 : step <= last) {
            *why = first ? "a schedule begins at step 0" : "the steps of a schedule rise";
            return false;
        }
        last = step;
        if (!at[count]) {
            return true;
        }
        at += count + 1;
    }
}

char *number_schedule_text(const char *text)
{
    uint64_t step, interval;
    if (number_count(text, 1, UINT32_MAX, &interval)) {
        return text_format("%llu", (unsigned long long)interval);
    }
    char *out = NULL;
    for (const char *at = text;; at++) {
        size_t count = strcspn(at, ",");
        if (!schedule_entry(at, count, &step, &interval)) {
            return text_copy(text);
        }
        char *stage =
            text_format("%llu:%llu", (unsigned long long)step, (unsigned long long)interval);
        bool single = !out && !at[count];
        out = single ? text_format("%llu", (unsigned long long)interval)
                     : text_format("%s%s%s", out ? out : "", out ? "," : "", stage);
        at += count;
        if (!*at) {
            return out;
        }
    }
}
