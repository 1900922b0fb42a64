/* pulse.h - a place in shared memory that says whether the process that owns it is alive.
 *
 * The kernel itself marks the place when the process ends, however it ends (robust futexes:
 * Documentation/locking/robust-futex-ABI), so looking is a load and needs no descriptor, no
 * process id and no heartbeat. A stopped process is alive.
 *
 * Any thread. One keeper thread per process, started by the first pulse_start. */
#ifndef SOLO_OS_PULSE_H
#define SOLO_OS_PULSE_H

#include <stdatomic.h>
#include <stdint.h>

#define PULSES_MAX 1024u /* at a time in one process; the kernel walks at most 2048 */

/* 64 zero bytes are a pulse that has not begun. Only its owner writes it. */
struct pulse {
    struct pulse *next; /* in the owner's address space: the kernel's list */
    _Atomic uint32_t word;
    uint32_t unused[13];
};

enum pulse_state {
    PULSE_NONE,    /* not begun */
    PULSE_BEATING, /* begun, and the process is alive */
    PULSE_STOPPED, /* ended by pulse_stop */
    PULSE_DEAD,    /* the process is gone */
};

/* SOLO_ELIMIT: PULSES_MAX in this process. */
int pulse_start(struct pulse *pulse);
/* Before the memory goes. A pulse of the parent of a fork, or one that was not started: nothing. */
void pulse_stop(struct pulse *pulse);

enum pulse_state pulse_look(const struct pulse *pulse);

#endif
