/* member_parts.h - what the files of the member's machine share; for member*.c alone.
 *
 * member.c          events of the script and of time, results
 * member_control.c  the connection to the master and its messages
 * member_link.c     peers, their links, data frames
 * member_round.c    begin, done, verdict
 * member_state.c    catch-up, donor's side */
#ifndef SOLO_PROTOCOL_MEMBER_PARTS_H
#define SOLO_PROTOCOL_MEMBER_PARTS_H

#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "protocol/member.h"

#define NOBODY UINT32_MAX

void member_set_state(struct member *member, enum member_state state); /* the only writer */
void member_rest(struct member *member); /* TRAINING, READY or OUTSIDE, as the flags say */
void member_joined(struct member *member, struct out *out);
void member_complete(struct member *member, int rc, enum solo_outcome outcome, struct out *out);
void member_over(struct member *member, int rc, const char *text, struct out *out);
uint64_t member_backoff_us(struct member *member, uint32_t failures);

void control_connect(struct member *member, struct out *out);
void control_hello(struct member *member, struct out *out); /* JOIN, when there is what to say */
void control_ready(struct member *member, struct out *out); /* READY, when it is due */
/* What follows from being in the list: JOINED, a merge that ends as SOLO_REJOINED, READY. */
void control_listed(struct member *member, struct out *out);
void control_up(struct member *member, struct out *out);
void control_down(struct member *member, int rc, const char *text, struct out *out);
void control_reset(struct member *member, const char *why, struct out *out);
void control_message(struct member *member, const struct msg *msg, struct out *out);
void control_tick(struct member *member, uint64_t gap_us, struct out *out);
void control_wake(const struct member *member, struct out *out);

void links_members(struct member *member, const struct msg_members *members, struct out *out);
void links_up(struct member *member, uint32_t peer, struct out *out);
void links_down(struct member *member, uint32_t peer, enum fault_kind kind, const char *text,
                struct out *out);
void links_received(struct member *member, const struct member_event *event, struct out *out);
void links_sent(struct member *member, const struct member_event *event, struct out *out);
void links_tick(struct member *member, struct out *out);
void links_close(struct member *member, struct out *out);
uint32_t links_peer_of_rank(const struct member *member, uint32_t node_rank);

void merge_begin(struct member *member, const struct msg_begin *begin, struct out *out);
void merge_verdict(struct member *member, enum frame_type type, const struct msg_verdict *verdict,
                   struct out *out);
void merge_drop(struct member *member, struct out *out);
void merge_fault(struct member *member, enum fault_kind kind, uint32_t rank, const char *text,
                 struct out *out);
void merge_encoded(struct member *member, const struct member_event *event, struct out *out);
void merge_reduced(struct member *member, const struct member_event *event, struct out *out);
void merge_applied(struct member *member, const struct member_event *event, struct out *out);
void merge_go_on(struct member *member, struct out *out); /* pump; DONE when whole */
void merge_note(struct member *member, const struct member_event *event);
void merge_tick(struct member *member, struct out *out);
void merge_wake(const struct member *member, struct out *out);
bool merge_exchanging(const struct member *member); /* in a round, not applying */
bool merge_applying(const struct member *member);

void state_catchup(struct member *member, const struct msg_catchup *order, struct out *out);
void state_stop(struct member *member);
void state_go_on(struct member *member, struct out *out);
void state_adopted(struct member *member, uint64_t digest, struct out *out);
void state_tell(struct member *member, struct out *out); /* CAUGHT_UP: what is held */
void state_fetch(struct member *member, uint32_t peer, const struct frame *frame, struct out *out);
void state_drop_serves(struct member *member, struct out *out);
void state_tick(struct member *member, struct out *out);
void state_wake(const struct member *member, struct out *out);

#endif
