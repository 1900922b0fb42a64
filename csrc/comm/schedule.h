/* schedule.h - who sends what to whom in a collective between hosts: pure, so that every order
 * of arrival and hundreds of ranks are tested without a socket.
 *
 * A collective is cut in pieces, which go one behind the other like beads, several at a time;
 * a piece takes some stages. In a stage a rank sends and receives; when it has all it
 * receives it may reduce, and then the next stage begins. Three ways:
 *
 *   whole   every part goes straight to who needs it; reductions are made where they are
 *           wanted. One stage: one latency, and for two ranks no byte too many.
 *   owners  each rank owns a slice. First all send an owner its slice and it reduces; then the
 *           owners send it to all who want it. Two latencies, 2 (W - 1) / W of the bytes, nobody
 *           sends more than others. Of a broadcast all but the root own slices: it deals them out,
 *           and sends every byte once.
 *   doubling  of barriers among many: in stage k a rank tells the one 2^k further on, and hears
 *           the one 2^k before it (Hensgen, Finkel, Manber 1988). log2 W stages, and no rank needs
 *           more than 2 log2 W links. Who is late is told by those alone that wait for it itself:
 *           where links are few enough to have all, a barrier goes the whole way.
 *
 * Sums are always in rank order, by one rank per element. */
#ifndef SOLO_COMM_SCHEDULE_H
#define SOLO_COMM_SCHEDULE_H

#include "comm/op.h"

#define SCHEDULE_PIECE_BYTES (256u << 10) /* of one transfer that is reduced */
#define SCHEDULE_WHOLE_BYTES (32u << 10)  /* up to here one latency beats fewer bytes */
#define SCHEDULE_ALL_LINKS   16u          /* up to so many ranks a barrier tells all */
#define SCHEDULE_STAGES      10u          /* log2 of SOLO_WORLD_MAX */

enum place { PLACE_IN, PLACE_OUT, PLACE_SCRATCH };

/* One transfer: `bytes` at `offset` of part number `part` (of the piece's scratch). */
struct move {
    uint32_t peer;
    enum place place;
    uint32_t part;
    uint64_t offset, bytes;
};

/* What is done when a stage has all it receives: source i is at in[in_part] + in_offset for this
 * rank itself, else at scratch + schedule_room. */
struct merge {
    uint32_t in_part;
    uint64_t in_offset, out_offset, bytes;
};

struct schedule {
    const struct solo_op *op; /* borrowed; NULL lists where a rank has none */
    uint32_t rank, world;
    size_t element; /* of what is sent and reduced */
    size_t result;  /* of the output: as `element`, but for partial sums */
    enum { WAY_WHOLE, WAY_OWNERS, WAY_DOUBLING } way;
    uint32_t stages, pieces;
    uint64_t piece_bytes;   /* of one transfer */
    uint64_t scratch_bytes; /* that a piece needs */
    bool keeps_input; /* what is sent lies where the result goes: no merge before it is sent */
};

/* The op passed op_check. Every rank of the group comes to the same way and pieces. `partial`: of an
 * all_reduce whose input is sums already, of reduce_sum_dtype: each owner rounds its slice to the
 * op's dtype, once, and only that is sent on. */
void schedule_init(struct schedule *schedule, const struct solo_op *op, uint32_t rank,
                   uint32_t world, bool partial);

/* Where what a rank sent lies in the scratch of a piece; this rank's own place, for what it reduced,
 * is the last, and not there where nothing needs it. */
static inline uint64_t schedule_room(const struct schedule *s, uint32_t from)
{
    uint32_t place = from < s->rank ? from : from > s->rank ? from - 1 : s->world - 1;
    return place * s->piece_bytes;
}

/* At most `world` moves each. */
uint32_t schedule_sends(const struct schedule *schedule, uint32_t piece, uint32_t stage,
                        struct move *out);
uint32_t schedule_receives(const struct schedule *schedule, uint32_t piece, uint32_t stage,
                           struct move *out);
bool schedule_merges(const struct schedule *schedule, uint32_t piece, uint32_t stage,
                     struct merge *out);

#endif
