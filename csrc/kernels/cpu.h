/* cpu.h - which instruction set the kernels use: the best that the processor has, at most
 * what SOLO_ISA names ("scalar", "avx2", "avx512", "neon"). Chosen once per process.
 *
 * Threads: any. */
#ifndef SOLO_KERNELS_CPU_H
#define SOLO_KERNELS_CPU_H

struct vec;

enum cpu_isa { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_NEON, CPU_ISA_COUNT };

/* The table of kernels in use; never NULL. solo_isa() names it. */
const struct vec *cpu_vec(void);

/* The table of one instruction set; NULL: not built in, or the processor has not got it. */
const struct vec *cpu_vec_of(enum cpu_isa isa);

/* From now on cpu_vec() gives this table, which must not be NULL: a test's means of running
 * everything above the kernels on each instruction set in one process. */
void cpu_force(const struct vec *table);

/* Puts this thread's float unit in its default state: round to nearest, denormals kept. A
 * thread that calculates what others must match to the bit calls it first: a script may have
 * called torch.set_flush_denormal, and a new thread inherits that. */
void cpu_float_reset(void);

#endif
