/* launch.h - all that is decided about one start, and the steps that decide and check it.
 *
 * Each step either fills fields and says what it found, or says why that cannot be. They
 * run in order; a start stops at the first failure, `solorun doctor` shows them all. */
#ifndef LAUNCHER_LAUNCH_H
#define LAUNCHER_LAUNCH_H

#include <stdint.h>

#include "args.h"
#include "device.h"
#include "machine.h"
#include "python.h"
#include "settings.h"

struct launch {
    const struct args *args;
    struct settings settings;
    bool solo, fixed, verbose, insecure, dry_run;

    const char *job_id;
    int node_rank; /* -1: not known */
    int nnodes;    /* 0: elastic */
    int expected;  /* nodes, for messages; 0: unknown */
    int min_nodes;
    uint32_t timeout_ms, lease_ms;
    uint64_t memory_bytes, log_bytes; /* 0: no limit */

    struct solo_url master, worker;
    const char *master_text;       /* tcp://HOST:PORT as given, with its port */
    struct address master_address; /* size 0: not resolved yet */
    bool master_loopback, has_worker;
    bool master_seen;        /* it runs, by its own word */
    const char *own_address; /* numeric, by the route to the master; NULL: none */
    const char *interface;   /* that has it */
    const char *token;       /* NULL: none */
    const char *token_file;  /* absolute; NULL: none */

    struct device_choice device;
    int gpus, cores;
    struct python python;

    const char *log_dir, *job_dir, *node_dir, *state_dir; /* absolute; NULL: none */
    bool log_dir_temporary;
};

struct step {
    const char *name;
    struct finding (*take)(struct launch *launch);
    bool solo_only; /* skipped without --solo */
    bool masters;   /* taken by `solorun master` too */
};
extern const struct step launch_steps[]; /* ends with a NULL name */

/* Reads the settings; what every command needs. */
struct finding launch_begin(const struct args *args, struct launch *out);

/* Resolves the master's name once: fills address, loopback, own address and interface.
 * False: *why says what is wrong with the name or the route. */
bool launch_resolve_master(struct launch *launch, const char **why);

const char *launch_text(const struct launch *launch, enum flag_id id);
/* "solorun doctor --master_url tcp://...". */
const char *launch_doctor(const struct launch *launch);

#endif
