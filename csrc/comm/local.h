/* local.h - collectives of a world of one rank. */
#ifndef SOLO_COMM_LOCAL_H
#define SOLO_COMM_LOCAL_H

#include "solo_group.h"

void local_run(const struct solo_op *op); /* arguments passed op_check */

#endif
