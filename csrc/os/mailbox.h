/* mailbox.h - the way into the loop thread: any thread posts, the loop thread runs.
 *
 * Bounded: at most MAILBOX_MAX letters wait. Letters run in the order of posting. */
#ifndef SOLO_OS_MAILBOX_H
#define SOLO_OS_MAILBOX_H

#include "os/loop.h"

#define MAILBOX_MAX 1024u /* letters of 32 bytes */

typedef void (*mailbox_fn)(void *context, void *argument);

struct mailbox;

/* Gives *out: mailbox_free on the loop thread. */
int mailbox_new(struct loop *loop, struct mailbox **out);

/* Any thread. Has fn(context, argument) run once on the loop thread, soon. SOLO_EAGAIN:
 * MAILBOX_MAX letters wait. SOLO_ECLOSED: after mailbox_close. On an error fn never runs. */
int mailbox_post(struct mailbox *mailbox, mailbox_fn fn, void *context, void *argument);

/* Loop thread. Refuses new letters and runs those that wait: each poster hears of the end. */
void mailbox_close(struct mailbox *mailbox);
void mailbox_free(struct mailbox *mailbox);

#endif
