/* mail.h - messages between two ranks of a group, matched by sender and tag.
 *
 * A message of up to MAIL_EAGER_MAX goes at once; a longer one is announced, asked for when a
 * receive matches it, and then sent. So no more than tubes and MAIL_KEPT_MAX is ever held for
 * messages that nobody asked for.
 *
 * Threads: any; the state is guarded by a lock of its own. A thread of the group's moves
 * messages on while something is posted, and so does every caller. */
#ifndef SOLO_COMM_MAIL_H
#define SOLO_COMM_MAIL_H

#include "base/text.h"
#include "comm/group.h"

#define MAIL_EAGER_MAX 4096u
#define MAIL_KEPT_MAX  (64u << 20)         /* of early messages; more stay with their senders */
#define MAIL_TAG_OWN   (UINT64_C(1) << 63) /* tags of the library's own messages */

int mail_new(struct solo_group *group, struct mail **out);
void mail_hang_up(struct mail *mail, int rc, const char *text); /* fails all that is posted */
bool mail_idle(struct mail *mail, bool sends_only);             /* nothing is posted */
void mail_free(struct mail *mail);
uint64_t mail_kept_bytes(struct mail *mail);
/* Appends what is posted, in words, at most so many. */
void mail_list_pending(struct mail *mail, uint32_t most, struct text *out);

#endif
