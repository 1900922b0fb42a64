/* folder.h - directories that a job writes to: made, and tried before anything depends on them. */
#ifndef LAUNCHER_FOLDER_H
#define LAUNCHER_FOLDER_H

#include <stdbool.h>

/* With all of its parents; 0 or -errno. */
int folder_make(const char *path);

/* NULL if it can be made and written as far as can be seen without touching it, else why not. */
const char *folder_obstacle(const char *path);

/* Makes it, then creates, syncs and renames a file in it, as a state or log file is written:
 * permissions do not tell of a full, read-only or odd file system. NULL, or why it failed. */
const char *folder_probe(const char *path);

#endif
