/* Loops that the C compiler may turn into vector code, atomics, and the checks of a checked kernel. */
#define PRAGMA(x) _Pragma(#x)
#ifdef __clang__
#define INDEPENDENT PRAGMA(clang loop vectorize(assume_safety))
#define SIMD_EXTREME(...) /* clang's lanes of a maximum begin with -FLT_MAX, not with minus infinity */
#else
#define INDEPENDENT PRAGMA(GCC ivdep)
#define SIMD_EXTREME(what, ...) PRAGMA(omp simd reduction(what) __VA_OPT__(reduction(| : __VA_ARGS__)))
#endif
#define SIMD_FOLD(what) PRAGMA(omp simd reduction(what))

/* Asks for memory that will soon be read: into the second cache, for the first has no room for so many lines on the way. */
static inline void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

/* An atomic reads the old bits, computes, and tries again if another thread was faster. */
#define ATOMIC(name, T, U, read, write, expression)                                                   \
  INLINE T atomic_##name(void* p, T v) {                                                              \
    U was = __atomic_load_n((U*)p, __ATOMIC_RELAXED), next;                                           \
    T old;                                                                                            \
    do {                                                                                              \
      old = read(was);                                                                                \
      next = (U)write(expression);                                                                    \
    } while (!__atomic_compare_exchange_n((U*)p, &was, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); \
    return old;                                                                                       \
  }
ATOMIC(fadd_f32, float, uint32_t, FLOAT, BITS, old + v)
ATOMIC(exch_f32, float, uint32_t, FLOAT, BITS, v)
#define INTEGER_ATOMICS(T, U, N)                                                                      \
  ATOMIC(add_##N, T, U, (T), (U), (U)old + (U)v)                                                      \
  ATOMIC(max_##N, T, U, (T), (U), old > v ? old : v)                                                  \
  ATOMIC(min_##N, T, U, (T), (U), old < v ? old : v)                                                  \
  ATOMIC(exch_##N, T, U, (T), (U), v)                                                                 \
  INLINE T atomic_cas_##N(void* p, T expected, T v) {                                                 \
    __atomic_compare_exchange_n((T*)p, &expected, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);          \
    return expected;                                                                                  \
  }
INTEGER_ATOMICS(int32_t, uint32_t, i32)
INTEGER_ATOMICS(int64_t, uint64_t, i64)

#ifdef CHECKED
static int is_inside(const launch* l, int argument, uint64_t address, uint64_t bytes) {
  int first = argument < 0 ? 0 : argument, last = argument < 0 ? l->num_args : argument + 1;
  for (int i = first; i < last; i++)
    if (bytes <= l->extents[i].bytes && address - l->extents[i].base <= l->extents[i].bytes - bytes) return 1;
  return 0;
}
/* Always 0. The first report of a launch is kept, and ends the launch. */
static __attribute__((noinline, cold)) int report(const launch* l, const int32_t* program, int site, uint64_t address) {
  fault* f = l->fault;
  if (__atomic_exchange_n(&f->failed, 1, __ATOMIC_ACQ_REL)) return 0;
  f->site = site;
  for (int i = 0; i < 3; i++) f->program[i] = program[i];
  f->address = address;
  *l->stop = 1;
  return 0;
}
#define WITHIN(p, argument, site, bytes)                                                              \
  (is_inside(l, argument, (uint64_t)(p), bytes) || report(l, program, site, (uint64_t)(p)))
/* A row of elements low .. high - 1, `step` elements apart: if both ends are inside, so is what lies between them. */
static __attribute__((noinline, cold)) int report_row(const launch* l, const int32_t* program, const char* p, int count,
                                                      int64_t step, int argument, int site, int bytes) {
  for (int i = 0; i < count; i++, p += step)
    if (!is_inside(l, argument, (uint64_t)p, bytes)) return report(l, program, site, (uint64_t)p);
  return 1;
}
#define ROW_WITHIN(p, low, high, step, argument, site, bytes)                                         \
  ((is_inside(l, argument, (uint64_t)(p) + (int64_t)(low) * (step) * (bytes), bytes) &&               \
    is_inside(l, argument, (uint64_t)(p) + ((int64_t)(high) - 1) * (step) * (bytes), bytes)) ||       \
   report_row(l, program, (const char*)(p) + (int64_t)(low) * (step) * (bytes), high - low, (int64_t)(step) * (bytes), \
              argument, site, bytes))
#define STOPPED (*l->stop)
/* Stopped by no fault, the loop in which a program was is noted. */
#define LEAVE_LOOP(number) { if (!l->fault->failed) l->fault->site = number; return; }
#else
#define STOPPED 0
#endif
