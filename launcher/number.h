/* number.h - the notations of flags: counts, durations, sizes, schedules. Pure; each returns
 * false for anything it does not take as a whole. */
#ifndef LAUNCHER_NUMBER_H
#define LAUNCHER_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool number_count(const char *text, uint64_t min, uint64_t max, uint64_t *out);
/* The next number in a text of the kernel's: blanks before it are skipped, *at stands behind. */
bool number_next(const char **at, int base, uint64_t *out);
bool number_bool(const char *text, bool *out);      /* 1 0 true false yes no on off */
bool number_ms(const char *text, uint32_t *out);    /* 90, 90s, 0.5, 250ms, 5m, 1h; > 0 */
bool number_bytes(const char *text, uint64_t *out); /* 512M, 16GiB, 16G (1024s), 16GB (1000s) */

/* "100" or "0:1,500:16": steps rise from 0, intervals are >= 1. On false *why says what. */
bool number_schedule(const char *text, const char **why);
/* The one spelling of a schedule that number_schedule takes: a single stage is its interval. */
char *number_schedule_text(const char *text);

#endif
