/* journal.h - a file of lines that only grows, and never beyond a limit: when it is full it is kept
 * as "<path>.1", what was that as ".2" and so on, the oldest is removed, and it begins anew.
 *
 * One thread per struct. A line is one write, so readers see whole ones. */
#ifndef SOLO_OS_JOURNAL_H
#define SOLO_OS_JOURNAL_H

#include <stdint.h>

#define JOURNAL_PATH_MAX 1024u
#define JOURNAL_KEPT     3u /* full ones */

struct journal {
    int fd; /* -1: not open */
    uint64_t size, size_max;
    char path[JOURNAL_PATH_MAX];
};

/* Goes on with what is there. Its folder must be there. SOLO_ESYS, SOLO_ELIMIT (path too long). */
int journal_open(struct journal *journal, const char *path, uint64_t size_max);
/* Adds the newline. SOLO_ESYS: it is not written; the next one may be. */
int journal_add(struct journal *journal, const char *line);
void journal_close(struct journal *journal); /* also of one that is not open */

#endif
