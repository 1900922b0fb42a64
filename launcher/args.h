/* args.h - the command line, taken apart. Pure. */
#ifndef LAUNCHER_ARGS_H
#define LAUNCHER_ARGS_H

#include "flags.h"
#include "message.h"
#include "text.h"

enum { TORCHRUN_WORDS_MAX = 64 };

/* A flag of torchrun's that the user gave, as written: one word or two. */
struct torchrun_word {
    int flag; /* index into torchrun_table */
    const char *words[2];
    const char *value; /* NULL: a switch */
};

struct args {
    const char *command;           /* "master", "doctor", ...; NULL: run a script */
    const char *value[FLAG_COUNT]; /* as given; switches "1"; NULL: not given */
    struct torchrun_word torchrun[TORCHRUN_WORDS_MAX];
    int torchrun_count;
    bool module, no_python; /* how the script is to be understood */
    const char *script;     /* NULL: none */
    struct list script_args;
    struct list operands; /* of a command: what is no flag */
};

/* Everything after the script, or after "--", is the script's. Borrows argv. */
struct finding args_parse(int argc, char **argv, struct args *out);

/* The value of a torchrun flag that was given last, NULL if it was not. */
const char *args_torchrun_value(const struct args *args, const char *name);

#endif
