/* command.h - what is executed in the end: torchrun's words and the changed environment. */
#ifndef LAUNCHER_COMMAND_H
#define LAUNCHER_COMMAND_H

#include "launch.h"

struct command {
    struct list argv;
    struct list set;   /* NAME=VALUE */
    struct list unset; /* NAME */
};

void command_build(const struct launch *launch, struct command *out);

/* The command as one shell line on stdout. */
void command_print(const struct command *command);

/* Applies the environment and execs; returns only if that failed. */
struct finding command_exec(const struct launch *launch, const struct command *command);

#endif
