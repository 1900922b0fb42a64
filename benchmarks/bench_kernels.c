/* How fast each kernel moves its bytes, beside memcpy in the same run.
 *
 *     bench_kernels [--json] [--mib N]
 *
 * A rate counts every byte that a stage must read and write once; "of memcpy" is this rate over
 * memcpy's own (a byte read and a byte written), measured just before. 1.0 means that the stage
 * costs no more than moving its bytes. Each figure is the median of 7 runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codec/codec.h"
#include "kernels/cpu.h"
#include "kernels/digest.h"
#include "kernels/reduce.h"
#include "wire/crc32c.h"

#define RUNS    7
#define SOURCES 4

static size_t count = 16u << 20; /* fp32 elements: 64 MiB an array */
static float *anchor, *momentum, *local, *residual, *in[SOURCES];
static uint8_t *out, *code[SOURCES];
static volatile uint64_t sink;

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const struct codec *codec_called(const char *name)
{
    const struct codec *codec = NULL;
    if (codec_find(name, &codec) < 0) {
        fprintf(stderr, "bench_kernels: %s\n", solo_error_text());
        exit(2);
    }
    return codec;
}

static void run_memcpy(const char *unused)
{
    (void)unused;
    memcpy(out, in[0], count * 4);
}

static void run_copy_stream(const char *unused)
{
    (void)unused;
    cpu_vec()->copy_stream(out, in[0], count * 4);
}

static void run_encode(const char *name)
{
    const struct codec *codec = codec_called(name);
    bool feedback = codec_has_residual(codec);
    struct codec_piece piece = {local, count, SOLO_F32};
    struct codec_delta delta = {anchor, &piece, feedback ? residual : NULL,
                                feedback ? residual : NULL, count};
    size_t bad = 0;
    sink += (uint64_t)codec_encode(codec, &delta, out, &bad);
}

static void run_reduce(const char *name)
{
    static const float weights[SOURCES] = {0.25f, 0.25f, 0.25f, 0.25f};
    const void *sources[SOURCES];
    for (int i = 0; i < SOURCES; i++) {
        sources[i] = code[i];
    }
    struct codec_mean mean = {sources, weights, SOURCES, NULL, NULL, count};
    size_t bad = 0;
    sink += (uint64_t)codec_reduce(codec_called(name), &mean, out, &bad);
}

static void apply(const char *name, const struct vec_outer *outer, float *buffer)
{
    struct codec_piece piece = {local, count, SOLO_F32};
    struct codec_step step = {code[0], outer, anchor, buffer, &piece, count};
    codec_apply(codec_called(name), &step);
}

static void run_average(const char *name)
{
    struct vec_outer outer = outer_average();
    apply(name, &outer, NULL);
}

static void run_nesterov(const char *name)
{
    struct vec_outer outer = outer_nesterov(0.7f, 0.9f);
    apply(name, &outer, momentum);
}

static void run_check(const char *name)
{
    const struct codec *codec = codec_called(name);
    sink += (uint64_t)codec_check(codec, code[0], codec_bytes(codec, count), count);
}

static void run_digest(const char *unused)
{
    (void)unused;
    sink += digest_chunk(0, in[0], count * 4);
}

static void run_crc(const char *unused)
{
    (void)unused;
    sink += crc32c(0, in[0], count * 4);
}

static void sum(enum solo_dtype dtype, size_t sources, enum reduce_op op, enum reduce_store store)
{
    struct reduce reduce = {op, dtype, (uint32_t)sources, 1.0};
    const void *from[SOURCES];
    for (size_t i = 0; i < sources; i++) {
        from[i] = in[i];
    }
    reduce_n(&reduce, out, from, sources, count * 4 / solo_dtype_bytes(dtype), store);
}

static enum solo_dtype dtype_called(const char *name)
{
    int dtype = 0;
    while (dtype < SOLO_DTYPE_COUNT && strcmp(solo_dtype_name((enum solo_dtype)dtype), name) != 0) {
        dtype++;
    }
    return (enum solo_dtype)dtype;
}

static void run_sum2(const char *name)
{
    sum(dtype_called(name), 2, REDUCE_SUM, REDUCE_CACHED);
}

static void run_sum2_streamed(const char *name)
{
    sum(dtype_called(name), 2, REDUCE_SUM, REDUCE_STREAMED);
}

static void run_sum4(const char *name)
{
    sum(dtype_called(name), 4, REDUCE_SUM, REDUCE_CACHED);
}

static void run_max2(const char *name)
{
    sum(dtype_called(name), 2, REDUCE_MAX, REDUCE_CACHED);
}

static void run_avg2(const char *name)
{
    sum(dtype_called(name), 2, REDUCE_AVG, REDUCE_CACHED);
}

static const struct row {
    const char *what;
    void (*run)(const char *argument);
    const char *argument;
    double bytes;      /* moved per fp32 element of the arrays */
    const char *codec; /* that code[] must hold */
} rows[] = {
    {"copy_stream", run_copy_stream, "", 8, NULL},
    {"delta + encode fp32", run_encode, "fp32", 12, NULL},
    {"delta + encode bf16, residual", run_encode, "bf16", 18, NULL},
    {"delta + encode int8, residual", run_encode, "int8", 17, NULL},
    {"delta + encode int4, residual", run_encode, "int4", 16.5, NULL},
    {"check fp32", run_check, "fp32", 4, "fp32"},
    {"mean of 4 fp32", run_reduce, "fp32", 20, "fp32"},
    {"decode fp32 + average + write", run_average, "fp32", 16, "fp32"},
    {"decode fp32 + nesterov + write", run_nesterov, "fp32", 24, "fp32"},
    {"mean of 4 bf16", run_reduce, "bf16", 10, "bf16"},
    {"decode bf16 + nesterov + write", run_nesterov, "bf16", 22, "bf16"},
    {"mean of 4 int8", run_reduce, "int8", 5, "int8"},
    {"decode int8 + average + write", run_average, "int8", 13, "int8"},
    {"decode int8 + nesterov + write", run_nesterov, "int8", 21, "int8"},
    {"mean of 4 int4", run_reduce, "int4", 2.5, "int4"},
    {"decode int4 + average + write", run_average, "int4", 12.5, "int4"},
    {"digest", run_digest, "", 4, NULL},
    {"crc32c", run_crc, "", 4, NULL},
    {"sum of 2, fp32", run_sum2, "float32", 12, NULL},
    {"sum of 2, fp32, streamed", run_sum2_streamed, "float32", 12, NULL},
    {"sum of 4, fp32", run_sum4, "float32", 20, NULL},
    {"maximum of 2, fp32", run_max2, "float32", 12, NULL},
    {"average of 2, fp32", run_avg2, "float32", 12, NULL},
    {"sum of 2, fp64", run_sum2, "float64", 12, NULL},
    {"sum of 2, bf16", run_sum2, "bfloat16", 12, NULL},
    {"sum of 4, bf16", run_sum4, "bfloat16", 20, NULL},
    {"sum of 2, fp16", run_sum2, "float16", 12, NULL},
    {"sum of 2, int32", run_sum2, "int32", 12, NULL},
    {"sum of 2, uint8", run_sum2, "uint8", 12, NULL},
    {"average of 2, int32", run_avg2, "int32", 12, NULL},
    {"sum of 2, float8_e4m3fn", run_sum2, "float8_e4m3fn", 12, NULL},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* GB/s of the row, and the median of its ratios to a memcpy just before each run. */
static double measure(const struct row *row, double *ratio_out)
{
    double rates[RUNS], ratios[RUNS];
    for (int i = 0; i < RUNS; i++) {
        double start = seconds_now();
        run_memcpy("");
        double middle = seconds_now();
        row->run(row->argument);
        double end = seconds_now();
        rates[i] = row->bytes * (double)count / (end - middle);
        ratios[i] = rates[i] / (8.0 * (double)count / (middle - start));
    }
    qsort(rates, RUNS, sizeof *rates, by_value);
    qsort(ratios, RUNS, sizeof *ratios, by_value);
    *ratio_out = ratios[RUNS / 2];
    return rates[RUNS / 2] / 1e9;
}

static void fill(void)
{
    for (size_t i = 0; i < count; i++) {
        float value = (float)(i * 2654435761u % 1000003u) * 1e-6f - 0.5f;
        anchor[i] = value;
        local[i] = value * 0.99f;
        momentum[i] = residual[i] = 0.0f;
        for (int source = 0; source < SOURCES; source++) {
            in[source][i] = value * (float)(source + 1);
        }
    }
}

static void prepare(const char *name)
{
    struct codec_delta delta = {.anchor = in[0], .count = count};
    size_t bad = 0;
    for (int i = 0; name && i < SOURCES; i++) {
        delta.anchor = in[i];
        sink += (uint64_t)codec_encode(codec_called(name), &delta, code[i], &bad);
    }
}

/* Arrays begin at different places in a page, as tensors do: where a store and a later load
 * agree in the lower 12 bits, the load waits for it. */
static void *array(void)
{
    static size_t arrays;
    size_t shift = 320 * arrays++;
    uint8_t *bytes = aligned_alloc(4096, count * 4 + 8192);
    bytes = bytes ? bytes + shift : NULL;
    if (!bytes) {
        fprintf(stderr, "bench_kernels: no memory for arrays of %zu MiB: use --mib\n", count >> 18);
        exit(2);
    }
    memset(bytes, 0, count * 4);
    return bytes;
}

int main(int argc, char **argv)
{
    bool as_json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            as_json = true;
        } else if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
            count = (size_t)atoi(argv[++i]) << 18;
        } else {
            fprintf(stderr, "usage: bench_kernels [--json] [--mib N]   (N: size of an array)\n");
            return 2;
        }
    }
    float **floats[] = {&anchor, &momentum, &local, &residual, &in[0], &in[1], &in[2], &in[3]};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        *floats[i] = array();
    }
    out = array();
    for (int i = 0; i < SOURCES; i++) {
        code[i] = array();
    }
    printf(as_json ? "{\"isa\": \"%s\", \"mib\": %zu, \"rows\": [" : "%s, arrays of %zu MiB\n",
           solo_isa(), count >> 18);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double ratio;
        fill();
        prepare(rows[i].codec);
        double rate = measure(&rows[i], &ratio);
        printf(as_json ? "%s{\"what\": \"%s\", \"gb_per_s\": %.2f, \"of_memcpy\": %.2f}"
                       : "%s%-34s %7.2f GB/s  %5.2f of memcpy\n",
               as_json && i ? ", " : "", rows[i].what, rate, ratio);
        fflush(stdout);
    }
    printf(as_json ? "]}\n" : "");
    return 0;
}
