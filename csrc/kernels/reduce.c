#include "kernels/reduce.h"

#include <string.h>

#include "base/err.h"
#include "kernels/convert.h"
#include "kernels/cpu.h"
#include "kernels/reduce_ops.h"
#include "kernels/vec.h"

#define BLOCK_BYTES 8192u /* of accumulators; two of them fit the first level cache */

/* ---- what has a meaning --------------------------------------------------------------------- */

static bool is_complex(enum solo_dtype dtype)
{
    return dtype == SOLO_C64 || dtype == SOLO_C128 || dtype == SOLO_C32;
}

static bool is_bitwise(enum reduce_op op)
{
    return op == REDUCE_BAND || op == REDUCE_BOR || op == REDUCE_BXOR;
}

static bool has_meaning(enum reduce_op op, enum solo_dtype dtype)
{
    bool is_order = op == REDUCE_MIN || op == REDUCE_MAX;
    if (dtype == SOLO_F8E8M0) { /* scales: powers of two that have no sum among themselves */
        return is_order;
    }
    if (convert_is_float(dtype)) {
        return !is_bitwise(op);
    }
    if (is_complex(dtype)) {
        return !is_bitwise(op) && !is_order;
    }
    if (dtype == SOLO_BOOL) {
        return op != REDUCE_AVG && op != REDUCE_PREMUL;
    }
    return convert_is_integer(dtype) && op != REDUCE_PREMUL;
}

const char *reduce_op_name(enum reduce_op op)
{
    static const char *const names[REDUCE_OP_COUNT] = {
        "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM",
    };
    return (unsigned)op < REDUCE_OP_COUNT ? names[op] : "unknown";
}

int reduce_check(enum reduce_op op, enum solo_dtype dtype)
{
    if ((unsigned)op < REDUCE_OP_COUNT && (unsigned)dtype < SOLO_DTYPE_COUNT &&
        has_meaning(op, dtype)) {
        return 0;
    }
    return err_set(SOLO_ENOTSUP,
                   "%s of %s has no meaning: reduce it as another dtype or with "
                   "another operation",
                   reduce_op_name(op), solo_dtype_name(dtype));
}

/* ---- one way to see all of them ------------------------------------------------------------- */

/* A reduction as the loops below see it: complex numbers are pairs of reals unless they are
 * multiplied, bit operations work on bytes, a bool's arithmetic is a bit operation. */
struct plan {
    enum reduce_op op;
    enum solo_dtype dtype, sum; /* of a source, of the accumulator */
    size_t per_element;         /* of these in one element of the caller's dtype */
    bool is_bool;
    reduce_op_fn combine;
    /* 16-bit floats have their own additions: NULL for all else. */
    void (*accumulate)(float *sum, const uint16_t *in, float factor, size_t count);
    void (*add_two)(uint16_t *out, const uint16_t *a, const uint16_t *b, size_t count);
    uint32_t divisor;
    double factor;
};

static enum reduce_op bool_op(enum reduce_op op)
{
    if (op == REDUCE_SUM || op == REDUCE_MAX) {
        return REDUCE_BOR;
    }
    return op == REDUCE_PRODUCT || op == REDUCE_MIN ? REDUCE_BAND : op;
}

static enum solo_dtype sum_of(enum reduce_op op, enum solo_dtype dtype)
{
    if (dtype == SOLO_C32) {
        return SOLO_C64;
    }
    if (convert_is_float(dtype) && solo_dtype_bytes(dtype) < 4) {
        return SOLO_F32;
    }
    bool is_narrow = convert_is_integer(dtype) && solo_dtype_bytes(dtype) < 8;
    return is_narrow && op == REDUCE_AVG ? SOLO_I64 : dtype;
}

enum solo_dtype reduce_sum_dtype(enum reduce_op op, enum solo_dtype dtype)
{
    return sum_of(op, dtype);
}

static void plan_halves(struct plan *plan)
{
    const struct vec *vec = cpu_vec();
    bool is_sum = plan->op == REDUCE_SUM || plan->op == REDUCE_AVG || plan->op == REDUCE_PREMUL;
    bool is_f16 = plan->dtype == SOLO_F16, is_bf16 = plan->dtype == SOLO_BF16;
    if (!is_sum || !(is_f16 || is_bf16)) {
        return;
    }
    plan->accumulate = is_f16 ? vec->axpy_f16 : vec->axpy_bf16;
    plan->factor = plan->op == REDUCE_PREMUL ? plan->factor : 1.0;
    if (plan->op == REDUCE_SUM) {
        plan->add_two = is_f16 ? vec->add_f16 : vec->add_bf16;
    }
}

static struct plan plan_of(const struct reduce *reduce)
{
    MUST(has_meaning(reduce->op, reduce->dtype));
    struct plan plan = {.op = reduce->op,
                        .dtype = reduce->dtype,
                        .per_element = 1,
                        .divisor = reduce->divisor,
                        .factor = reduce->factor};
    if (plan.dtype == SOLO_BOOL) {
        plan.is_bool = true;
        plan.op = bool_op(plan.op);
    }
    if (is_complex(plan.dtype) && plan.op != REDUCE_PRODUCT) {
        plan.per_element = 2;
        plan.dtype = plan.dtype == SOLO_C64    ? SOLO_F32
                     : plan.dtype == SOLO_C128 ? SOLO_F64
                                               : SOLO_F16;
    } else if (is_bitwise(plan.op)) {
        plan.per_element = solo_dtype_bytes(plan.dtype);
        plan.dtype = SOLO_U8;
    }
    MUST(plan.op != REDUCE_AVG || plan.divisor >= 1);
    plan.sum = sum_of(plan.op, plan.dtype);
    plan.combine = reduce_op_of(plan.op, plan.sum);
    MUST(plan.combine);
    plan_halves(&plan);
    return plan;
}

/* ---- load, combine, store, a block at a time ------------------------------------------------ */

static void load_wider(const struct plan *plan, void *out, const void *source, size_t count)
{
    if (plan->sum == SOLO_F32) {
        convert_to_f32(out, source, plan->dtype, count);
    } else if (plan->sum == SOLO_C64) {
        convert_to_f32(out, source, SOLO_F16, 2 * count);
    } else {
        convert_to_i64(out, source, plan->dtype, count);
    }
}

static void multiply(void *values, enum solo_dtype dtype, double factor, size_t count)
{
    if (dtype == SOLO_F32) {
        cpu_vec()->scale_f32(values, values, (float)factor, count);
    } else {
        reduce_scale_f64(values, factor, count);
    }
}

static bool loads_as_it_is(const struct plan *plan)
{
    return plan->dtype == plan->sum && plan->op != REDUCE_PREMUL && !plan->is_bool;
}

static void load(const struct plan *plan, void *out, const void *source, size_t count)
{
    if (plan->is_bool) {
        reduce_normalise(out, source, count);
    } else if (plan->dtype != plan->sum) {
        load_wider(plan, out, source, count);
    } else if (out != source) {
        memcpy(out, source, count * solo_dtype_bytes(plan->dtype));
    }
    if (plan->op == REDUCE_PREMUL) {
        multiply(out, plan->sum, plan->factor, count);
    }
}

static bool stores_as_it_is(const struct plan *plan)
{
    return plan->dtype == plan->sum && plan->op != REDUCE_AVG;
}

/* Changes `sum` on the way: AVG's division. */
static void store(const struct plan *plan, void *out, void *sum, size_t count)
{
    if (plan->op == REDUCE_AVG) {
        if (plan->sum == SOLO_F32 || plan->sum == SOLO_F64) {
            multiply(sum, plan->sum, 1.0 / plan->divisor, count);
        } else if (plan->sum == SOLO_I64 || plan->sum == SOLO_U64) {
            reduce_divide(sum, plan->sum, plan->divisor, count);
        }
    }
    if (plan->dtype == plan->sum) {
        if (out != sum) {
            memcpy(out, sum, count * solo_dtype_bytes(plan->dtype));
        }
    } else if (plan->sum == SOLO_F32) {
        convert_from_f32(out, sum, plan->dtype, count);
    } else if (plan->sum == SOLO_C64) {
        convert_from_f32(out, sum, SOLO_F16, 2 * count);
    } else {
        convert_from_i64(out, sum, plan->dtype, count);
    }
}

/* The sum of one block of all sources. Nothing is written to `out`, which may be a source,
 * before the last source is read. Where the accumulator is what is stored, the last addition
 * writes straight to out. */
static void reduce_block(const struct plan *plan, uint8_t *out, const void *const *sources,
                         size_t source_count, size_t offset, size_t count)
{
    _Alignas(64) uint8_t sum[BLOCK_BYTES], room[BLOCK_BYTES];
    const void *so_far = (const uint8_t *)sources[0] + offset;
    if (source_count == 2 && plan->add_two) {
        const void *next = (const uint8_t *)sources[1] + offset;
        plan->add_two((uint16_t *)(void *)out, so_far, next, count);
        return;
    }
    if (!loads_as_it_is(plan) || source_count == 1) {
        load(plan, sum, so_far, count);
        so_far = sum;
    }
    for (size_t i = 1; i < source_count; i++) {
        const void *next = (const uint8_t *)sources[i] + offset;
        if (plan->accumulate) {
            plan->accumulate((float *)(void *)sum, next, (float)plan->factor, count);
            continue;
        }
        if (!loads_as_it_is(plan)) {
            load(plan, room, next, count);
            next = room;
        }
        bool is_last = i + 1 == source_count && stores_as_it_is(plan);
        plan->combine(is_last ? out : sum, so_far, next, count);
        so_far = sum;
    }
    if (source_count == 1 || !stores_as_it_is(plan)) {
        store(plan, out, sum, count);
    }
}

void reduce_n(const struct reduce *reduce, void *out, const void *const *sources,
              size_t source_count, size_t count, enum reduce_store store_as)
{
    _Alignas(64) uint8_t result[BLOCK_BYTES];
    struct plan plan = plan_of(reduce);
    size_t element = solo_dtype_bytes(plan.dtype), left = count * plan.per_element;
    size_t block = BLOCK_BYTES / solo_dtype_bytes(plan.sum);
    MUST(source_count >= 1);
    for (size_t offset = 0; left; offset += block * element) {
        size_t part = left < block ? left : block;
        uint8_t *to = (uint8_t *)out + offset;
        bool is_streamed = store_as == REDUCE_STREAMED;
        reduce_block(&plan, is_streamed ? result : to, sources, source_count, offset, part);
        if (is_streamed) {
            cpu_vec()->copy_stream(to, result, part * element);
        }
        left -= part;
    }
}

/* ---- step by step --------------------------------------------------------------------------- */

void reduce_start(const struct reduce *reduce, void *sum, const void *source, size_t count)
{
    struct plan plan = plan_of(reduce);
    if (count) {
        load(&plan, sum, source, count * plan.per_element);
    }
}

void reduce_add(const struct reduce *reduce, void *sum, const void *source, size_t count)
{
    _Alignas(64) uint8_t room[BLOCK_BYTES];
    struct plan plan = plan_of(reduce);
    size_t element = solo_dtype_bytes(plan.dtype), wide = solo_dtype_bytes(plan.sum);
    size_t left = count * plan.per_element, block = BLOCK_BYTES / wide;
    if (loads_as_it_is(&plan)) {
        plan.combine(sum, sum, source, left);
        return;
    }
    if (plan.accumulate) {
        plan.accumulate(sum, source, (float)plan.factor, left);
        return;
    }
    uint8_t *to = sum;
    const uint8_t *from = source;
    for (; left; to += block * wide, from += block * element) {
        size_t part = left < block ? left : block;
        load(&plan, room, from, part);
        plan.combine(to, to, room, part);
        left -= part;
    }
}

void reduce_finish(const struct reduce *reduce, void *out, const void *sum, size_t count)
{
    _Alignas(64) uint8_t room[BLOCK_BYTES];
    struct plan plan = plan_of(reduce);
    size_t element = solo_dtype_bytes(plan.dtype), wide = solo_dtype_bytes(plan.sum);
    size_t left = count * plan.per_element, block = BLOCK_BYTES / wide;
    uint8_t *to = out;
    const uint8_t *from = sum;
    for (; left; to += block * element, from += block * wide) {
        size_t part = left < block ? left : block;
        memcpy(room, from, part * wide); /* so that out may be the accumulator */
        store(&plan, to, room, part);
        left -= part;
    }
}
