/* What a compiled kernel and the code that launches it agree on.
 *
 * A kernel is a shared object with `run_programs`, which runs programs first .. last - 1 of the grid, x fastest: program p
 * is (p % X, p / X % Y, p / X / Y). Any number of threads may call it at once, with ranges that do not overlap.
 *
 * args[i] points to the value of the i-th argument, as CUDA's kernelParams do: a pointer argument's value is the
 * tensor's address. Constants that Triton has specialised (constexpr, None, an integer that is 1) have no place there. */
#ifndef TRITON_ON_CPU_RUNTIME_H
#define TRITON_ON_CPU_RUNTIME_H
#include <stdint.h>

/* The memory that a pointer argument may touch. Not a pointer: bytes is 0. */
typedef struct {
  uint64_t base;
  uint64_t bytes;
} extent;

enum fault_kind { FAULT_NONE = 0, FAULT_LOAD = 1, FAULT_STORE = 2, FAULT_ATOMIC = 3, FAULT_ASSERT = 4 };

/* The first thing that went wrong in a launch. Whoever changes `failed` from 0 to 1 fills in the rest; it is read
 * after all threads have come back. The access itself was not made: a load got 0, a store was left out. */
typedef struct {
  int32_t failed;
  int32_t kind;       /* enum fault_kind */
  int32_t program[3]; /* program ids */
  int32_t argument;   /* index into args; -1 if the pointer cannot be traced to one argument */
  int32_t line;       /* of the kernel's source; 0 if unknown */
  int32_t site;       /* index into Generated.sites */
  int64_t element;    /* counted from the argument's own address; may be negative */
  uint64_t address;
} fault;

/* One launch, shared by all of its threads. A kernel compiled unchecked reads grid alone. */
typedef struct {
  int32_t grid[3];
  int32_t num_args;
  const extent *extents;  /* [num_args] */
  fault *fault;           /* zeroed before the launch */
  volatile int32_t *stop; /* set from outside, or by the first fault: every loop then ends its program */
} launch;

typedef void (*run_programs_fn)(const launch *l, const void *const *args, int32_t first, int32_t last);

#endif
