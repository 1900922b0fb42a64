/* saver.h - the state file, written in the background from the anchor itself.
 *
 * Between two outer steps the anchor does not change, so the saver reads it without a copy.
 * An outer step asks for it first (saver_hold): a save that is still reading is abandoned
 * and begun again later, but not more than SAVER_ABANDONS_MAX times in a row; the next outer
 * step then waits until the reading, not the disk, is over.
 *
 * Threads: saver_* from the loop thread, saver_open and saver_close from any one. */
#ifndef SOLO_NODE_SAVER_H
#define SOLO_NODE_SAVER_H

#include <stdatomic.h>

#include "node/state.h"
#include "os/thread.h"

#define SAVER_ABANDONS_MAX 3u
#define SAVER_NAME_MAX     (SOLO_NAME_MAX + 32u)

enum saver_phase { SAVER_IDLE, SAVER_READING, SAVER_SYNCING };

struct saver {
    struct thread thread;
    struct lock lock; /* of what follows, down to `calls` */
    enum saver_phase phase;
    bool offered, held, changed, asked, stop; /* changed: the anchor is not what was offered */
    uint32_t abandoned;                       /* in a row */
    struct state_version version;
    uint64_t saved;         /* the version in the file */
    int rc;                 /* of the last save; its text was logged */
    _Atomic uint32_t calls; /* changes when the thread shall look again */
    const struct job *job;  /* borrowed */
    char folder[STORE_PATH_MAX], name[SAVER_NAME_MAX];
    void (*free_again)(void *context); /* from the saver's thread: a hold that was refused may
                                          be asked for again */
    void *context;
};

int saver_open(struct saver *saver, const struct job *job, const char *folder, const char *name,
               void (*free_again)(void *context), void *context);

/* true: nobody reads the anchor until saver_offer or saver_release. false: free_again will be
 * called. */
bool saver_hold(struct saver *saver);
/* Under a hold: the anchor changes now; what was offered is not there any more. */
void saver_change(struct saver *saver);
/* The hold is over; if nothing was changed under it, what was offered may still be saved. */
void saver_release(struct saver *saver);
/* The anchor is whole and is this version: it may be saved, and the hold is over. */
void saver_offer(struct saver *saver, uint64_t version, uint64_t job_step, uint64_t digest);
/* Saves what was offered last, unless it was changed since; then ends the thread. */
void saver_close(struct saver *saver);

#endif
