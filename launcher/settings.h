/* settings.h - every flag's value with its source; the first source in this order wins. */
#ifndef LAUNCHER_SETTINGS_H
#define LAUNCHER_SETTINGS_H

#include "args.h"

enum source {
    SOURCE_FLAG,
    SOURCE_SOLO, /* SOLO_*, and NODE_RANK after SOLO_NODE_RANK */
    SOURCE_PET,
    SOURCE_FILE,
    SOURCE_SCHEDULER,
    SOURCE_DEFAULT,
};

struct setting {
    const char *value; /* NULL: nobody said anything */
    enum source source;
    const char *origin; /* "--master_url", "SOLO_MASTER_URL", "solo.toml:3", "SLURM_NODEID" */
};

struct settings {
    struct setting of[FLAG_COUNT];
    struct setting expected; /* nodes to expect, for messages; never chooses the fixed mode */
    struct list warnings;    /* two explicit sources that contradict each other */
};

/* Gathers flags, environment, files and scheduler. */
struct finding settings_gather(const struct args *args, struct settings *out);

/* Offers a value; taken if nobody above has spoken. */
void settings_offer(struct settings *settings, enum flag_id id, enum source source,
                    const char *origin, const char *value);

const char *settings_text(const struct settings *settings, enum flag_id id); /* or default */
bool settings_explicit(const struct settings *settings, enum flag_id id);    /* a user said it */
const char *settings_origin(const struct settings *settings, enum flag_id id);

/* `name = value  # source` lines on stdout, in the form of a configuration file. */
void settings_print(const struct settings *settings);

#endif
