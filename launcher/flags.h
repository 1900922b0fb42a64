/* flags.h - the one table of solorun's flags, and torchrun's. From it come --help, the names
 * on the command line (with - or _), the SOLO_* variables and the keys of the files. */
#ifndef LAUNCHER_FLAGS_H
#define LAUNCHER_FLAGS_H

#include <stdbool.h>

enum flag_id {
    FLAG_SOLO,
    FLAG_DEVICE_COUNT,
    FLAG_GPUS,
    FLAG_DEVICE,
    FLAG_MEMORY,
    FLAG_NNODES,
    FLAG_MIN_NODES,
    FLAG_TIMEOUT,
    FLAG_MASTER_URL,
    FLAG_WORKER_URL,
    FLAG_NODE_RANK,
    FLAG_JOB_ID,
    FLAG_TOKEN_FILE,
    FLAG_INSECURE,
    FLAG_LEASE,
    FLAG_STREAMS,
    FLAG_SYNC_INTERVAL,
    FLAG_OUTER,
    FLAG_CODEC,
    FLAG_NO_SYNC_AT_EPOCH_END,
    FLAG_LINGER,
    FLAG_STATE_DIR,
    FLAG_LOG_DIR,
    FLAG_LOG_SIZE,
    FLAG_LOG_FORMAT,
    FLAG_COLOR,
    FLAG_VERBOSE,
    FLAG_CONFIG,
    FLAG_PRINT_CONFIG,
    FLAG_DRY_RUN,
    FLAG_JSON,
    FLAG_VERSION,
    FLAG_HELP,
    FLAG_HELP_ALL,
    FLAG_COUNT,
};

enum flag_group { GROUP_LAUNCH, GROUP_NETWORK, GROUP_SYNC, GROUP_OUTPUT, GROUP_COUNT };

enum flag_traits {
    FLAG_FIRST = 1,  /* on the screen of --help */
    FLAG_ACTION = 2, /* on the command line only */
    FLAG_SYNC = 4,   /* means nothing without --solo */
    FLAG_PLAIN = 8,  /* translated for torchrun without --solo */
};

struct flag {
    const char *name;     /* SOLO_<NAME> unless `variable` */
    const char *value;    /* what follows it, NULL: a switch */
    const char *fallback; /* the default, as text; NULL: none */
    enum flag_group group;
    unsigned traits;
    const char *variable; /* NULL: SOLO_<NAME> */
    const char *pet;      /* the torchrun variable that means the same */
    const char *help;
};

extern const struct flag flag_table[FLAG_COUNT];

/* The flag of this name, '-' or '_'; FLAG_COUNT if there is none. */
enum flag_id flag_find(const char *name);
/* "SOLO_MASTER_URL". */
const char *flag_variable(enum flag_id id);

/* torchrun 2.13's own flags; a test compares the table with torchrun's parser. */
struct torchrun_flag {
    const char *name;
    char letter; /* 0: none */
    bool takes_value;
    const char *refused; /* why --solo refuses it; NULL: passed on */
};
extern const struct torchrun_flag torchrun_table[];
extern const int torchrun_count;
int torchrun_find(const char *name); /* -1: none */

/* The nearest name of both tables to one that nobody knows, NULL if none is near. */
const char *flag_nearest(const char *name, bool ours_only);

#endif
