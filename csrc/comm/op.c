#include "comm/op.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"

_Static_assert((int)SOLO_REDUCE_PREMUL == (int)REDUCE_PREMUL &&
                   (int)SOLO_REDUCE_MAX == (int)REDUCE_MAX &&
                   (int)SOLO_REDUCE_BXOR == (int)REDUCE_BXOR,
               "one order of operators in both headers");

enum parts { NONE, ONE, WORLD };

/* How many parts a kind takes: on its root (or everywhere), and elsewhere. */
static const struct {
    const char *name;
    enum parts in, out, in_elsewhere, out_elsewhere;
    bool reduces, rooted;
    bool equal; /* every rank's part has the same length, which the header carries */
} table[SOLO_OP_KIND_COUNT] = {
    [SOLO_OP_BARRIER] = {"barrier", NONE, NONE, NONE, NONE, false, false, true},
    [SOLO_OP_BROADCAST] = {"broadcast", NONE, ONE, NONE, ONE, false, true, true},
    [SOLO_OP_ALLREDUCE] = {"all_reduce", ONE, ONE, ONE, ONE, true, false, true},
    [SOLO_OP_REDUCE] = {"reduce", ONE, ONE, ONE, NONE, true, true, true},
    [SOLO_OP_ALLGATHER] = {"all_gather", ONE, WORLD, ONE, WORLD, false, false, false},
    [SOLO_OP_GATHER] = {"gather", ONE, WORLD, ONE, NONE, false, true, true},
    [SOLO_OP_SCATTER] = {"scatter", WORLD, ONE, NONE, ONE, false, true, false},
    [SOLO_OP_REDUCE_SCATTER] = {"reduce_scatter", WORLD, ONE, WORLD, ONE, true, false, false},
    [SOLO_OP_ALLTOALL] = {"all_to_all", WORLD, WORLD, WORLD, WORLD, false, false, false},
};

const char *solo_op_name(enum solo_op_kind kind)
{
    return (unsigned)kind < SOLO_OP_KIND_COUNT ? table[kind].name : "unknown";
}

bool op_reduces(enum solo_op_kind kind)
{
    return table[kind].reduces;
}

int op_aborted(const struct op_abort *abort)
{
    return atomic_load(&abort->set) ? err_set(SOLO_EABORTED, "%s", abort->text) : 0;
}

bool op_is_equal(enum solo_op_kind kind)
{
    return table[kind].equal;
}

bool op_has_root(enum solo_op_kind kind)
{
    return table[kind].rooted;
}

bool op_only_gives(const struct solo_op *op, uint32_t rank)
{
    bool from_root = op->kind == SOLO_OP_BROADCAST || op->kind == SOLO_OP_SCATTER;
    return table[op->kind].rooted && from_root == (op->root == rank);
}

static int check_parts(const struct solo_op *op, const char *which, uint32_t found,
                       const struct solo_part *parts, enum parts wanted, uint32_t world)
{
    uint32_t count = wanted == NONE ? 0 : wanted == ONE ? 1 : world;
    if (found != count) {
        return err_set(SOLO_EINVAL, "%s takes %u %s tensors here, not %u", solo_op_name(op->kind),
                       count, which, found);
    }
    uint64_t most = UINT64_MAX / 2 / solo_dtype_bytes(op->dtype);
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].count > most || (parts[i].count && !parts[i].bytes)) {
            return err_set(SOLO_EINVAL, "%s: the %s tensor %u has no memory",
                           solo_op_name(op->kind), which, i);
        }
    }
    return 0;
}

static int check_lengths(const struct solo_op *op, uint32_t rank)
{
    uint64_t in = 0, out = 0;
    switch (op->kind) {
    case SOLO_OP_ALLREDUCE:
    case SOLO_OP_REDUCE:
        in = op->in[0].count;
        out = op->out_count ? op->out[0].count : in;
        break;
    case SOLO_OP_ALLGATHER:
    case SOLO_OP_GATHER:
        in = op->in[0].count;
        out = op->out_count ? op->out[rank].count : in;
        break;
    case SOLO_OP_SCATTER:
    case SOLO_OP_REDUCE_SCATTER:
        out = op->out[0].count;
        in = op->in_count ? op->in[rank].count : out;
        break;
    case SOLO_OP_ALLTOALL:
        in = op->in[rank].count;
        out = op->out[rank].count;
        break;
    case SOLO_OP_BARRIER:
    case SOLO_OP_BROADCAST:
    case SOLO_OP_KIND_COUNT:
        break;
    }
    if (in != out) {
        return err_set(SOLO_EINVAL,
                       "%s on rank %u: its own input has %" PRIu64
                       " elements, the output for it %" PRIu64,
                       solo_op_name(op->kind), rank, in, out);
    }
    return 0;
}

int op_check(const struct solo_op *op, uint32_t rank, uint32_t world)
{
    if ((unsigned)op->kind >= SOLO_OP_KIND_COUNT || (unsigned)op->dtype >= SOLO_DTYPE_COUNT) {
        return err_set(SOLO_EINVAL, "no such collective or dtype: %d, %d", op->kind, op->dtype);
    }
    if (table[op->kind].rooted && op->root >= world) {
        return err_set(SOLO_EINVAL, "%s: root %u is not a rank of this group of %u",
                       solo_op_name(op->kind), op->root, world);
    }
    bool elsewhere = table[op->kind].rooted && op->root != rank;
    TRY(check_parts(op, "input", op->in_count, op->in,
                    elsewhere ? table[op->kind].in_elsewhere : table[op->kind].in, world));
    TRY(check_parts(op, "output", op->out_count, op->out,
                    elsewhere ? table[op->kind].out_elsewhere : table[op->kind].out, world));
    if (table[op->kind].reduces) {
        if ((unsigned)op->reduce >= SOLO_REDUCE_COUNT) {
            return err_set(SOLO_ENOTSUP, "%s: reduce operator %d is not known to solo",
                           solo_op_name(op->kind), op->reduce);
        }
        TRY(reduce_check((enum reduce_op)op->reduce, op->dtype));
    }
    return check_lengths(op, rank);
}

struct op_header op_header_of(const struct solo_op *op, uint64_t sequence)
{
    struct op_header header = {.sequence = sequence, .kind = op->kind, .dtype = op->dtype};
    if (table[op->kind].reduces) {
        header.reduce = op->reduce;
        header.factor = op->reduce == SOLO_REDUCE_PREMUL ? op->factor : 0;
    }
    if (table[op->kind].rooted) {
        header.root = op->root;
    }
    if (op->in_count == 1) {
        header.count = op->in[0].count;
    } else if (op->out_count == 1) {
        header.count = op->out[0].count;
    }
    return header;
}

uint64_t op_bytes(const struct solo_op *op)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < op->in_count; i++) {
        most = op->in[i].count > most ? op->in[i].count : most;
    }
    for (uint32_t i = 0; i < op->out_count; i++) {
        most = op->out[i].count > most ? op->out[i].count : most;
    }
    return most * solo_dtype_bytes(op->dtype);
}

struct reduce op_reduce(const struct solo_op *op, uint32_t world)
{
    return (struct reduce){.op = (enum reduce_op)op->reduce,
                           .dtype = op->dtype,
                           .divisor = world,
                           .factor = op->factor};
}

struct reduce op_reduce_sums(const struct solo_op *op)
{
    bool adds = op->reduce == SOLO_REDUCE_AVG || op->reduce == SOLO_REDUCE_PREMUL;
    return (struct reduce){.op = adds ? REDUCE_SUM : (enum reduce_op)op->reduce,
                           .dtype = reduce_sum_dtype((enum reduce_op)op->reduce, op->dtype),
                           .divisor = 1};
}

static bool meet(const struct solo_op *a, const struct solo_part *parts_a, uint32_t count_a,
                 const struct solo_op *b, const struct solo_part *parts_b, uint32_t count_b)
{
    for (uint32_t i = 0; i < count_a; i++) {
        for (uint32_t j = 0; j < count_b; j++) {
            uintptr_t at_a = (uintptr_t)parts_a[i].bytes, at_b = (uintptr_t)parts_b[j].bytes;
            uint64_t bytes_a = parts_a[i].count * solo_dtype_bytes(a->dtype);
            uint64_t bytes_b = parts_b[j].count * solo_dtype_bytes(b->dtype);
            if (at_a < at_b + bytes_b && at_b < at_a + bytes_a) {
                return true;
            }
        }
    }
    return false;
}

bool op_touches(const struct solo_op *a, const struct solo_op *b)
{
    return meet(a, a->out, a->out_count, b, b->in, b->in_count) ||
           meet(a, a->out, a->out_count, b, b->out, b->out_count) ||
           meet(a, a->in, a->in_count, b, b->out, b->out_count);
}

bool op_own_copy(const struct solo_op *op, uint32_t rank, struct solo_part *from,
                 struct solo_part *to)
{
    bool gathers = op->kind == SOLO_OP_ALLGATHER || op->kind == SOLO_OP_GATHER;
    bool scatters = op->kind == SOLO_OP_SCATTER;
    if (!(gathers || scatters || op->kind == SOLO_OP_ALLTOALL) || !op->in_count || !op->out_count) {
        return false;
    }
    *from = op->in[gathers ? 0 : rank];
    *to = op->out[scatters ? 0 : rank];
    return from->bytes != to->bytes && from->count > 0;
}

void op_text(const struct op_header *header, char out[OP_TEXT_MAX])
{
    enum solo_op_kind kind = (enum solo_op_kind)header->kind;
    const char *name = solo_op_name(kind);
    if (kind == SOLO_OP_BARRIER || header->kind >= SOLO_OP_KIND_COUNT) {
        snprintf(out, OP_TEXT_MAX, "%s #%" PRIu64, name, header->sequence);
        return;
    }
    char count[24] = "some";
    if (header->count != OP_COUNT_UNKNOWN) {
        snprintf(count, sizeof count, "%" PRIu64, header->count);
    }
    int used = snprintf(out, OP_TEXT_MAX, "%s #%" PRIu64 " of %s %s", name, header->sequence, count,
                        solo_dtype_name((enum solo_dtype)header->dtype));
    if (table[kind].reduces) {
        used += snprintf(out + used, OP_TEXT_MAX - (size_t)used, ", %s",
                         reduce_op_name((enum reduce_op)header->reduce));
    }
    if (table[kind].rooted) {
        snprintf(out + used, OP_TEXT_MAX - (size_t)used, ", root %u", header->root);
    }
}

bool op_same(const struct op_header *a, const struct op_header *b)
{
    bool same = a->sequence == b->sequence && a->kind == b->kind && a->dtype == b->dtype &&
                a->reduce == b->reduce && a->root == b->root && a->factor <= b->factor &&
                a->factor >= b->factor;
    return same && (a->kind >= SOLO_OP_KIND_COUNT || !table[a->kind].equal || a->count == b->count);
}
