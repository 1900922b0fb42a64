/* help.h - texts made from the table of flags, on stdout. */
#ifndef LAUNCHER_HELP_H
#define LAUNCHER_HELP_H

#include <stdbool.h>

void help_print(bool all);
/* solorun(1). */
void help_manual(void);
/* A completion script for bash, zsh or fish; false for a shell we have none for. */
bool help_completion(const char *shell);

#endif
