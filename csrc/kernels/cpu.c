#include "kernels/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/vec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const struct vec *_Atomic chosen;

const struct vec *cpu_vec_of(enum cpu_isa isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init(); /* looks as well whether the system saves the wide registers */
    bool avx2 = __builtin_cpu_supports("avx2"); /* none was ever made without F16C */
    if (isa == CPU_AVX2 && avx2) {
        return &vec_avx2;
    }
    if (isa == CPU_AVX512 && avx2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        return &vec_avx512;
    }
#elif defined(__aarch64__)
    if (isa == CPU_NEON) {
        return &vec_neon;
    }
#endif
    return isa == CPU_SCALAR ? &vec_scalar : NULL;
}

/* The highest instruction set that SOLO_ISA allows; what it does not know it ignores. */
static enum cpu_isa cap(void)
{
    static const char *const names[CPU_ISA_COUNT] = {
        [CPU_SCALAR] = "scalar",
        [CPU_AVX2] = "avx2",
        [CPU_AVX512] = "avx512",
        [CPU_NEON] = "neon",
    };
    const char *wanted = getenv("SOLO_ISA");
    if (!wanted || !*wanted) {
        return CPU_ISA_COUNT - 1;
    }
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (strcmp(wanted, names[isa]) == 0) {
            return (enum cpu_isa)isa;
        }
    }
    log_line(SOLO_LOG_WARN,
             "SOLO_ISA=%s is not an instruction set and is ignored: "
             "use scalar, avx2, avx512 or neon",
             wanted);
    return CPU_ISA_COUNT - 1;
}

const struct vec *cpu_vec(void)
{
    const struct vec *table = atomic_load_explicit(&chosen, memory_order_acquire);
    if (table) {
        return table;
    }
    for (int isa = (int)cap(); !table; isa--) { /* ends: scalar is always there */
        table = cpu_vec_of((enum cpu_isa)isa);
    }
    const struct vec *before = NULL; /* two threads may come here: the first one's choice holds */
    if (!atomic_compare_exchange_strong(&chosen, &before, table)) {
        table = before;
    }
    return table;
}

void cpu_force(const struct vec *table)
{
    MUST(table);
    atomic_store_explicit(&chosen, table, memory_order_release);
}

const char *solo_isa(void)
{
    return cpu_vec()->name;
}

void cpu_float_reset(void)
{
#if defined(__x86_64__)
    _mm_setcsr(0x1f80); /* all exceptions masked, nearest, no flush to zero */
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
#endif
}
