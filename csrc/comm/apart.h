/* apart.h - ranks of one host that wait for each other get off each other's core. */
#ifndef SOLO_COMM_APART_H
#define SOLO_COMM_APART_H

#include "comm/board.h"

/* This rank begins to wait for that one, and each rank of the board can have a core: if they share one,
 * the one with the higher number goes to another. A move costs some 50 us; one that did not hold is tried
 * again later, and ever later. */
void apart_keep(struct board *board, uint32_t rank);

#define APART_US     10000u
#define APART_US_MAX 1000000u

#endif
