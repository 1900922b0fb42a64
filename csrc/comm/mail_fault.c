/* What ends a message early: a rank that went, a broken group, its deadline. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "comm/mail_inside.h"

/* A rank that went, with nothing of it left to read. In this order: what it sent last was there
 * before it went. */
static int gone(struct mail *mail, uint32_t rank)
{
    int rc = board_alive(&mail->group->board, rank);
    return rc < 0 && !tube_mail_pending(mail, rank) ? rc : 0;
}

static int fault_on_board(struct mail *mail, const struct post *post)
{
    const struct board *board = &mail->group->board;
    TRY(board_broken(board));
    if (post->peer != SOLO_ANY_SOURCE) {
        return gone(mail, post->peer);
    }
    uint32_t left = 0; /* one that leaves in good order need not be the one that is waited for */
    for (uint32_t i = 0; i < board->ranks; i++) {
        int rc = i == board->rank ? 0 : gone(mail, i);
        left += rc < 0;
        if (rc < 0 && (board_has_died(board, i) || left == board->ranks - 1)) {
            return rc;
        }
    }
    return 0;
}

int mail_fault(struct mail *mail, const struct post *post, uint64_t now_us)
{
    TRY(group_usable(mail->group));
    if (mail->group->net) {
        TRY(net_mail_reach(mail, post));
        TRY(net_told_fault(mail->group->net));
    } else {
        TRY(fault_on_board(mail, post));
    }
    if (now_us <= post->deadline_us) {
        return 0;
    }
    char peer[24] = "any rank";
    if (post->peer != SOLO_ANY_SOURCE) {
        snprintf(peer, sizeof peer, "rank %u", post->peer);
    }
    return err_set(SOLO_ETIMEDOUT,
                   "%s %s, tag %" PRId64 ", %" PRIu64 " bytes: Timed out after %.1f s with %" PRIu64
                   " bytes moved",
                   post->receive ? "receive from" : "send to", peer, (int64_t)post->tag, post->size,
                   (double)(now_us - post->begun_us) / 1e6, post->moved);
}
