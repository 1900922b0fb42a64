/* faults.h - everything that is wrong with one file, collected, so that one message can say
 * it all. The parsers go on after a fault wherever the rest can still be judged. */
#ifndef SOLO_CKPT_FAULTS_H
#define SOLO_CKPT_FAULTS_H

#include "base/err.h"
#include "solo_ckpt.h"

#define FAULTS_KEPT 32u /* later ones are only counted */

struct faults {
    uint32_t count;               /* of all, kept or not */
    struct solo_ckpt_fault *kept; /* NULL until the first: most files have none */
};

/* Takes the thread's error text as a fault; returns the SOLO_E code it was set with. */
int faults_take(struct faults *faults, enum solo_ckpt_fault_code code, uint64_t offset, int rc);

void faults_free(struct faults *faults);

/* FAULT(faults, SOLO_CKPT_DAMAGED, offset, "format", ...): SOLO_ECORRUPT, to be returned. */
#define FAULT(faults, code, offset, ...)                                                           \
    faults_take(faults, code, offset, err_set(SOLO_ECORRUPT, __VA_ARGS__))

/* Bounded text of a name out of a file, printable, for a message. Four may be in use at once. */
const char *faults_name(const void *name, size_t size);

/* a + b, or UINT64_MAX when that overflows; likewise a * b: every range check stays one
 * comparison. */
uint64_t add_capped(uint64_t a, uint64_t b);
uint64_t multiply_capped(uint64_t a, uint64_t b);

#endif
