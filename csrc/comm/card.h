/* card.h - what a rank tells the others of itself before they meet, as one line of text. */
#ifndef SOLO_COMM_CARD_H
#define SOLO_COMM_CARD_H

#include "solo_group.h"

#define CARD_HOST_MAX     64u
#define CARD_SECRET_BYTES 32u

struct card {
    char host_id[80];                       /* equal: one kernel and one network namespace */
    char host[CARD_HOST_MAX];               /* for messages: host name and process id */
    char meeting[64];                       /* the abstract socket of this rank */
    char secret[2 * CARD_SECRET_BYTES + 1]; /* rank 0's is the group's */
    char address[80];                       /* tcp://host:port, or "-" */
};

int card_write(const struct card *card, char out[SOLO_CARD_MAX]);
int card_read(const char *text, struct card *out); /* SOLO_EVERSION */
int card_host_id(char out[80]);

#endif
