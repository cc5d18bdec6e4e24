/* Products of tiles: C += A B, all row by row in arrays of floats whose sizes the C compiler knows.
 *
 * A block of C stays in registers while k runs: for each k, one row of B's vectors and one number of A per row of C. */
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t w16 __attribute__((vector_size(64), aligned(4), may_alias));
#define AT(p) (*(v16*)(p))
#ifdef __AVX512F__
#define BLOCK_ROWS 8 /* x 2 vectors: 16 of 32 registers */
#define BLOCK_VECTORS 2
#else
#define BLOCK_ROWS 4 /* x 1 vector, of two registers: 8 of 16 */
#define BLOCK_VECTORS 1
#endif

#define BLOCK(ROWS, VECTORS, STEP, AHEAD)                                                                    \
  for (; n + 16 * VECTORS <= N; n += 16 * VECTORS) {                                                  \
    v16 c[ROWS][VECTORS], b[VECTORS];                                                                 \
    for (int i = 0; i < ROWS; i++) for (int j = 0; j < VECTORS; j++) c[i][j] = AT(&C[(m + i) * N + n + 16 * j]); \
    for (int k = 0; k < K; k++) {                                                                     \
      for (int j = 0; j < VECTORS; j++) {                                                             \
        b[j] = AT(&B[k * stride + n + 16 * j]);                                                       \
        if (AHEAD) __builtin_prefetch(&B[(k + AHEAD) * stride + n + 16 * j]);                         \
      }                                                                                               \
      for (int i = 0; i < ROWS; i++) for (int j = 0; j < VECTORS; j++) c[i][j] = STEP(c[i][j], A[(m + i) * K + k], b[j]); \
    }                                                                                                 \
    for (int i = 0; i < ROWS; i++) for (int j = 0; j < VECTORS; j++) AT(&C[(m + i) * N + n + 16 * j]) = c[i][j]; \
  }
/* A [M, K], B [K, N] with `stride` from row to row, C [M, N]. M is a power of two, N a multiple of 16. In memory, rows
 * of B are asked for AHEAD rows early: it would come too late by itself where a row is a piece of a larger one. */
#define IN_MEMORY (2048 / N) /* 8 KiB */
#define PRODUCT(name, T, STEP, AHEAD)                                                                 \
  INLINE void name(const int M, const int N, const int K, const T* A, const T* B, const int64_t stride, float* C) { \
    for (int m = 0, n; m < M; m += MIN(M, BLOCK_ROWS)) {                                              \
      n = 0;                                                                                          \
      if (M >= BLOCK_ROWS) { BLOCK(BLOCK_ROWS, BLOCK_VECTORS, STEP, AHEAD) BLOCK(BLOCK_ROWS, 1, STEP, AHEAD) }      \
      if (M == 4) { BLOCK(4, 4, STEP, AHEAD) BLOCK(4, 1, STEP, AHEAD) }                                             \
      if (M == 2) { BLOCK(2, 4, STEP, AHEAD) BLOCK(2, 1, STEP, AHEAD) }                                             \
      if (M == 1) { BLOCK(1, 4, STEP, AHEAD) BLOCK(1, 1, STEP, AHEAD) }                                             \
    }                                                                                                 \
  }
#define ADD_PRODUCT(c, a, b) (c) + (a) * (b)
PRODUCT(product, float, ADD_PRODUCT, 0)
PRODUCT(product_in_memory, float, ADD_PRODUCT, IN_MEMORY)

/* bf16: a word is two neighbours in k, the first in its lower half. */
#if defined(PAIRS) && defined(__AVX512BF16__)
#include <immintrin.h> /* a third of a second for the compiler: for kernels that have such products only */
#define ADD_PAIRS(c, a, b) (v16)_mm512_dpbf16_ps((__m512)(c), (__m512bh)_mm512_set1_epi32(a), (__m512bh)(b))
#else
#define ADD_PAIRS(c, a, b) (c) + FLOAT((a) << 16) * (v16)((w16)(b) << 16) + FLOAT((a) & 0xffff0000u) * (v16)((w16)(b) & 0xffff0000u)
#endif
PRODUCT(add_pairs, uint32_t, ADD_PAIRS, IN_MEMORY)
INLINE void product_of_pairs(const int M, const int N, const int K, const float* A, const uint32_t* B, const int64_t stride, float* C) {
  uint32_t pairs[M * K / 2] ALIGNED;
  for (int i = 0; i < M * K / 2; i++) pairs[i] = BITS(A[2 * i]) >> 16 | (BITS(A[2 * i + 1]) & 0xffff0000u);
  add_pairs(M, N, K / 2, pairs, B, stride, C);
}

/* The sums of 16 vectors, as one vector: at each step two vectors become one, half as many sums as before. */
#define SHUFFLE __builtin_shufflevector
#define FOLD8(a, b) (SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) + SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
#define FOLD4(a, b) (SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) + SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31))
#define FOLD2(a, b) (SHUFFLE(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) + SHUFFLE(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31))
#define FOLD1(a, b) (SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) + SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31))
INLINE v16 sums_of_16(const v16* s) {
  v16 h[8], q[4];
  for (int i = 0; i < 8; i++) h[i] = FOLD8(s[2 * i], s[2 * i + 1]);
  for (int i = 0; i < 4; i++) q[i] = FOLD4(h[2 * i], h[2 * i + 1]);
  return FOLD1(FOLD2(q[0], q[1]), FOLD2(q[2], q[3]));
}

/* B is given transposed, [N, K]. Many rows of A pay for turning it; for few, vectors run along K. */
INLINE void product_transposed(const int M, const int N, const int K, const float* A, const float* B, const int64_t stride, float* C) {
  if (M > 8 || K % 16) {
    float T[K * N] ALIGNED;
    for (int n0 = 0; n0 < N; n0 += 16) for (int k0 = 0; k0 < K; k0 += 16)
      for (int k = k0; k < MIN(k0 + 16, K); k++) for (int n = n0; n < n0 + 16; n++) T[k * N + n] = B[n * stride + k];
    product(M, N, K, A, T, N, C);
    return;
  }
  for (int n = 0; n < N; n += 16)
    for (int m = 0; m < M; m++) {
      v16 s[16];
      for (int j = 0; j < 16; j++) s[j] = (v16){0};
      for (int k = 0; k < K; k += 16) for (int j = 0; j < 16; j++) s[j] += AT(&A[m * K + k]) * AT(&B[(n + j) * stride + k]);
      AT(&C[m * N + n]) += sums_of_16(s);
    }
}

/* Integers, and floats in few columns: B may lie transposed. */
#define PLAIN_PRODUCT(name, T, R)                                                                     \
  INLINE void name(const int M, const int N, const int K, const T* A, const T* B, const int64_t stride, R* C) { \
    for (int m = 0; m < M; m++) for (int k = 0; k < K; k++) for (int n = 0; n < N; n++) C[m * N + n] += (R)A[m * K + k] * (R)B[k * stride + n]; \
  }                                                                                                   \
  INLINE void name##_transposed(const int M, const int N, const int K, const T* A, const T* B, const int64_t stride, R* C) { \
    for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) C[m * N + n] += (R)A[m * K + k] * (R)B[n * stride + k]; \
  }
PLAIN_PRODUCT(narrow_product, float, float)
PLAIN_PRODUCT(product_i32, int8_t, int32_t)
