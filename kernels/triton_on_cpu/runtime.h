/* What a compiled kernel and the code that launches it agree on.
 *
 * A kernel is a shared object with `run_programs`, which runs programs first .. last - 1 of the grid, x fastest: program p
 * is (p % X, p / X % Y, p / X / Y). Any number of threads may call it at once, with ranges that do not overlap. */
#ifndef TRITON_ON_CPU_RUNTIME_H
#define TRITON_ON_CPU_RUNTIME_H
#include <stdint.h>

/* The memory that a pointer argument may touch. Not a pointer: bytes is 0. */
typedef struct {
  uint64_t base;
  uint64_t bytes;
} extent;

/* The first thing that went wrong in a launch. Whoever changes `failed` from 0 to 1 fills in the rest; it is read
 * after all threads have come back. The access itself was not made: a load got 0, a store was left out. */
typedef struct {
  int32_t failed;
  int32_t site;       /* index into Generated.sites */
  int32_t program[3]; /* program ids */
  uint64_t address;
} fault;

/* One launch, shared by all of its threads. A kernel compiled unchecked reads grid and args alone.
 *
 * args[i] is the value of the i-th argument in its first bytes: of a pointer the tensor's address. Constants that Triton
 * has specialised (constexpr, None, an integer that is 1) have no place there. */
typedef struct launch {
  void (*run_programs)(const struct launch *l, int32_t first, int32_t last);
  int32_t grid[3];
  int32_t num_args;
  const extent *extents;  /* [num_args] */
  fault *fault;           /* zeroed before the launch */
  volatile int32_t *stop; /* set from outside, or by the first fault: every loop then ends its program */
  uint64_t args[];
} launch;

#endif
