/* state.h - the file in which a node keeps the last committed anchor and momentum, so that a
 * job that lost all its nodes goes on from there.
 *
 * A header of STATE_HEADER_BYTES with its own CRC-32C, then anchor (fp32), integers (int64),
 * momentum (fp32), little-endian, with one CRC-32C over all of them. One thread per call. */
#ifndef SOLO_NODE_STATE_H
#define SOLO_NODE_STATE_H

#include "node/job.h"
#include "os/store.h"

#define STATE_HEADER_BYTES 512u
#define STATE_PIECE_BYTES  (1u << 20) /* between two looks at whether to go on */

struct state_version {
    uint64_t version, job_step, digest;
};

/* The file's name for a job and node: letters, digits, '-', '_' and '.' alone. */
void state_name(const char *job_id, uint32_t node_rank, char *name, size_t size);

/* Writes what job holds; `going_on(context)` is asked before each piece: false abandons it
 * with SOLO_EABORTED and the old file stays. What it reads is free again when the store is
 * given back: store_commit makes it the file. */
int state_write(const struct job *job, const struct state_version *version, const char *folder,
                const char *name, bool (*going_on)(void *context), void *context,
                struct store *store_out);

/* Reads the file into job, whose anchor it becomes. SOLO_ENOENT: there is none.
 * SOLO_ECORRUPT, SOLO_EMISMATCH (another model or outer step): job holds no anchor. */
int state_read(struct job *job, const char *folder, const char *name,
               struct state_version *version_out);

#endif
