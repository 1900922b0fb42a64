#include "comm/local.h"

#include <string.h>

#include "comm/op.h"

void local_run(const struct solo_op *op)
{
    if (!op->in_count || !op->out_count || !op->in[0].count) {
        return; /* a barrier, a broadcast to oneself, nothing to do */
    }
    const void *source = op->in[0].bytes;
    void *out = op->out[0].bytes;
    if (op_reduces(op->kind)) { /* of one source: PREMUL and a bool's many values have a meaning */
        bool is_changed = op->reduce == SOLO_REDUCE_PREMUL || op->dtype == SOLO_BOOL;
        if (source == out && !is_changed) {
            return;
        }
        struct reduce reduce = op_reduce(op, 1);
        reduce_n(&reduce, out, &source, 1, op->in[0].count, REDUCE_CACHED);
    } else if (source != out) {
        memmove(out, source, op->in[0].count * solo_dtype_bytes(op->dtype));
    }
}
