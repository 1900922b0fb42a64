#include "ckpt/read_plan.h"

#include <string.h>

#include "ckpt/faults.h"

static int by_offset(const void *a, const void *b)
{
    const struct solo_ckpt_read *left = *(struct solo_ckpt_read *const *)a;
    const struct solo_ckpt_read *right = *(struct solo_ckpt_read *const *)b;
    if (left->offset != right->offset) {
        return left->offset < right->offset ? -1 : 1;
    }
    return (left > right) - (left < right);
}

/* Cuts one span of neighbours, reads first to last, into pieces. */
static int cut_span(struct read_plan *plan, size_t first, size_t last, uint64_t piece_bytes)
{
    uint64_t at = plan->order[first]->offset;
    uint64_t end = plan->order[last]->offset + plan->order[last]->bytes;
    while (at < end) {
        uint64_t stop = (at / piece_bytes + 1) * piece_bytes;
        struct read_plan_piece piece = {.offset = at, .first = first, .part = plan->parts};
        piece.bytes = (stop < end ? stop : end) - at;
        uint64_t piece_end = at + piece.bytes;
        size_t next = first;
        while (next <= last && plan->order[next]->offset < piece_end) {
            next++;
        }
        piece.count = next - first;
        while (first <= last &&
               plan->order[first]->offset + plan->order[first]->bytes <= piece_end) {
            first++;
        }
        plan->parts += piece.count;
        TRY(grow(&plan->pieces, 1, sizeof piece));
        ((struct read_plan_piece *)plan->pieces.items)[plan->pieces.count++] = piece;
        at = piece_end;
        if (first <= last && plan->order[first]->offset > at) {
            at = plan->order[first]->offset; /* the gap at a cut is nobody's */
        }
    }
    return 0;
}

static int cut(struct read_plan *plan, uint64_t gap_max, uint64_t piece_bytes)
{
    for (size_t first = 0; first < plan->count;) {
        size_t last = first;
        uint64_t end = plan->order[first]->offset + plan->order[first]->bytes;
        while (last + 1 < plan->count && plan->order[last + 1]->offset >= end &&
               plan->order[last + 1]->offset - end <= gap_max) {
            last++;
            end = plan->order[last]->offset + plan->order[last]->bytes;
        }
        TRY(cut_span(plan, first, last, piece_bytes));
        first = last + 1;
    }
    return 0;
}

int read_plan_make(struct solo_ckpt_read *reads, size_t count, uint64_t gap_max,
                   uint64_t piece_bytes, struct read_plan *out)
{
    *out = (struct read_plan){.order = malloc((count + 1) * sizeof(*out->order))};
    if (!out->order) {
        return err_set(SOLO_ENOMEM, "no memory to plan %zu reads", count);
    }
    for (size_t i = 0; i < count; i++) {
        reads[i].crc_found = 0;
        if (add_capped(reads[i].offset, reads[i].bytes) > UINT64_MAX / 2) {
            read_plan_free(out);
            return err_set(SOLO_EINVAL, "a read reaches beyond any file");
        }
        if (reads[i].bytes) {
            out->order[out->count++] = &reads[i];
            out->bytes += reads[i].bytes;
        }
    }
    qsort(out->order, out->count, sizeof(*out->order), by_offset);
    int rc = cut(out, gap_max, piece_bytes);
    if (rc < 0) {
        read_plan_free(out);
    }
    return rc;
}

void read_plan_free(struct read_plan *plan)
{
    free(plan->order);
    plan->order = NULL;
    grown_free(&plan->pieces);
}
