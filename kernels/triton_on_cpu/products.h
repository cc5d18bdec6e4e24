/* Products of tiles: C += A B, all row by row in arrays of floats whose sizes the C compiler knows.
 *
 * A block of C stays in registers while k runs: for each k, one row of B's vectors and one number of A per row of C. */
#ifdef BF16 /* half a second for the compiler */
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
typedef float v16 __attribute__((vector_size(64), aligned(2), may_alias));
typedef uint32_t w16 __attribute__((vector_size(64), aligned(2), may_alias));
typedef uint32_t word __attribute__((aligned(2), may_alias));
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

/* Vectors are turned in four steps, at distances d of 8, 4, 2 and 1: lanes of rows i and i + d change places. */
#define SHUFFLE __builtin_shufflevector
#define UPPER(j, d) ((j) & (d) ? 16 + (j) - (d) : (j))
#define LOWER(j, d) ((j) & (d) ? 16 + (j) : (j) + (d))
#define LANES(F, d) F(0, d), F(1, d), F(2, d), F(3, d), F(4, d), F(5, d), F(6, d), F(7, d), F(8, d), F(9, d), F(10, d), \
  F(11, d), F(12, d), F(13, d), F(14, d), F(15, d)
#define TURN(d)                                                                                       \
  for (int i = 0; i < 16; i++) if (!(i & d)) {                                                        \
    v16 a = rows[i], b = rows[i + d];                                                                 \
    rows[i] = SHUFFLE(a, b, LANES(UPPER, d)), rows[i + d] = SHUFFLE(a, b, LANES(LOWER, d));           \
  }
/* B [N, K] of floats or words, `stride` from row to row, to T [K, N]. */
INLINE void turn(const int N, const int K, const float* B, const int64_t stride, float* T) {
  if (K % 16)
    for (int k = 0; k < K; k++) for (int n = 0; n < N; n++) ((word*)T)[k * N + n] = ((const word*)B)[n * stride + k];
  else
    for (int n = 0; n < N; n += 16) for (int k = 0; k < K; k += 16) {
      v16 rows[16];
      for (int i = 0; i < 16; i++) rows[i] = AT(&B[(n + i) * stride + k]);
      TURN(8) TURN(4) TURN(2) TURN(1)
      for (int i = 0; i < 16; i++) AT(&T[(k + i) * N + n]) = rows[i];
    }
}

/* The sums of 16 vectors, as one vector: turned and added, of which each step of turning does its part. */
#define FOLD(d) for (int i = 0; i < d; i++) s[i] = SHUFFLE(s[i], s[i + d], LANES(UPPER, d)) + SHUFFLE(s[i], s[i + d], LANES(LOWER, d));
INLINE v16 sums_of_16(v16* s) {
  FOLD(8) FOLD(4) FOLD(2) FOLD(1)
  return s[0];
}

/* B is given transposed, [N, K]. Many rows of A pay for turning it; for few, vectors run along K. */
INLINE void product_transposed(const int M, const int N, const int K, const float* A, const float* B, const int64_t stride, float* C) {
  if (M > 8 || K % 16) {
    float T[K * N] ALIGNED;
    turn(N, K, B, stride, T);
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

#ifdef BF16
/* ---- bf16, K even: pairs of neighbours in k are multiplied at once. A word is a pair, the first in its lower half. */
#ifdef __AVX512BF16__
#define ADD_PAIRS(c, a, b) (v16)_mm512_dpbf16_ps((__m512)(c), (__m512bh)_mm512_set1_epi32(a), (__m512bh)(b))
#else
#define ADD_PAIRS(c, a, b) (c) + FLOAT((a) << 16) * (v16)((w16)(b) << 16) + FLOAT((a) & 0xffff0000u) * (v16)((w16)(b) & 0xffff0000u)
#endif
PRODUCT(add_pairs, word, ADD_PAIRS, 0)
PRODUCT(add_pairs_in_memory, word, ADD_PAIRS, IN_MEMORY)

#ifdef __AMX_BF16__
/* AMX: C in tiles of TILE_ROWS x 16 (registers 0 to 3), A in TILE_ROWS x 16 pairs (4), B in 16 x 16 pairs (5); of a
 * product that is turned, C and A in 16 x TILE_ROWS (6 and 7).
 * TILE_ROWS is the kernel's: 16, or the least M of its products, which then divides all of them. */
static int has_tiles; /* if Linux lets this process use them */
__attribute__((constructor)) static void ask_for_tiles(void) {
  has_tiles = !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* the registers of AMX */);
}
static const struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } TILES = {
  1, 0, {0}, {64, 64, 64, 64, 64, 64, 4 * TILE_ROWS, 4 * TILE_ROWS},
  {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, 16, 16, 16}
};
#define TILES_BEGIN if (has_tiles) _tile_loadconfig(&TILES);
#define TILES_END if (has_tiles) _tile_release();
#define EACH_TILE(DO) { DO(0) if (width > 1) { DO(1) } if (width > 2) { DO(2) DO(3) } }
#define LOAD_TILE(j) _tile_loadd(j, &C[m * N + n + 16 * j], 4 * N);
#define ADD_TILE(j) _tile_loadd(5, &B[k / 2 * stride + n + 16 * j], 4 * stride); _tile_dpbf16ps(j, 4, 5);
#define STORE_TILE(j) _tile_stored(j, &C[m * N + n + 16 * j], 4 * N);
INLINE void add_tiles(const int M, const int N, const int K, const uint16_t* A, const word* B, const int64_t stride, float* C,
                      const int ahead) {
  const int width = MIN(N / 16, 4);
  __asm__ volatile("" ::: "memory"); /* gcc does not know that tiles are loaded from memory */
  for (int m = 0; m < M; m += TILE_ROWS) for (int n = 0; n < N; n += 16 * width) {
    EACH_TILE(LOAD_TILE)
    for (int k = 0; k < K; k += 32) {
      for (int i = 0; ahead && i < 16; i++) for (int j = 0; j < width; j++)
        __builtin_prefetch(&B[(k / 2 + i + ahead) * stride + n + 16 * j]);
      _tile_loadd(4, &A[m * K + k], 2 * K);
      EACH_TILE(ADD_TILE)
    }
    EACH_TILE(STORE_TILE)
  }
}
#define TILES_TAKE(K) (has_tiles && (K) % 32 == 0)

/* M rows of 16 lanes, row by row in M vectors, are turned to 16 rows of M, and back: M is a power of two, at most 8. */
#define ZIPPED(j, first) ((j) / 2 + (j) % 2 * 16 + (first))
#define EACH_OTHER(j, first) (2 * (j) + (first))
INLINE void turn_few(const int M, v16* v) {
  for (int turned = 1; turned < M; turned *= 2) {
    v16 old[M];
    for (int i = 0; i < M; i++) old[i] = v[i];
    for (int i = 0; i < M / 2; i++) {
      v[2 * i] = SHUFFLE(old[i], old[i + M / 2], LANES(ZIPPED, 0));
      v[2 * i + 1] = SHUFFLE(old[i], old[i + M / 2], LANES(ZIPPED, 8));
    }
  }
}
INLINE void turn_few_back(const int M, v16* v) {
  for (int turned = 1; turned < M; turned *= 2) {
    v16 old[M];
    for (int i = 0; i < M; i++) old[i] = v[i];
    for (int i = 0; i < M / 2; i++) {
      v[i] = SHUFFLE(old[2 * i], old[2 * i + 1], LANES(EACH_OTHER, 0));
      v[i + M / 2] = SHUFFLE(old[2 * i], old[2 * i + 1], LANES(EACH_OTHER, 1));
    }
  }
}
/* B [N, K] in memory or an array, and few rows: C^T += B A^T, for which A alone is turned. */
INLINE void add_tiles_turned(const int M, const int N, const int K, const uint16_t* A, const uint16_t* B, const int64_t stride, float* C) {
  float a[K / 2 * M] ALIGNED, c[16 * M] ALIGNED;
  for (int k = 0; k < K / 2; k += 16) {
    v16 rows[M];
    for (int m = 0; m < M; m++) rows[m] = AT(&A[m * K + 2 * k]);
    turn_few(M, rows);
    for (int m = 0; m < M; m++) AT(&a[k * M + 16 * m]) = rows[m];
  }
  for (int n = 0; n < N; n += 16) {
    __asm__ volatile("" ::: "memory");
    _tile_zero(6);
    for (int k = 0; k < K; k += 32) {
      _tile_loadd(5, &B[n * stride + k], 2 * stride);
      _tile_loadd(7, &a[k / 2 * M], 4 * M);
      _tile_dpbf16ps(6, 5, 7);
    }
    _tile_stored(6, c, 4 * M);
    __asm__ volatile("" ::: "memory");
    v16 rows[M];
    for (int m = 0; m < M; m++) rows[m] = AT(&c[16 * m]);
    turn_few_back(M, rows);
    for (int m = 0; m < M; m++) AT(&C[m * N + n]) += rows[m];
  }
}
#else
#define TILES_TAKE(K) 0
#define add_tiles(...)
#define add_tiles_turned(...)
#endif

/* B [K / 2, N] of words in memory. The time of few rows is the memory's. */
INLINE void product_of_pairs(const int M, const int N, const int K, const uint16_t* A, const word* B, const int64_t stride, float* C) {
  if (TILES_TAKE(K) && M >= 4) {
    add_tiles(M, N, K, A, B, stride, C, IN_MEMORY);
  } else {
    add_pairs_in_memory(M, N, K / 2, (const word*)A, B, stride, C);
  }
}
/* B [K / 2, N] of words in an array. */
INLINE void product_of_own_pairs(const int M, const int N, const int K, const uint16_t* A, const word* B, float* C) {
  if (TILES_TAKE(K)) {
    add_tiles(M, N, K, A, B, N, C, 0);
  } else {
    add_pairs(M, N, K / 2, (const word*)A, B, N, C);
  }
}

#ifdef __AVX512BF16__
typedef uint16_t h32 __attribute__((vector_size(64), aligned(2), may_alias));
#define PAIR_OF(j, d) (d) + (j), 32 + (d) + (j)
#define HALVES(d) LANES(PAIR_OF, d)
INLINE void product_bf16(const int M, const int N, const int K, const uint16_t* A, const uint16_t* B, const int64_t stride, float* C) {
  uint32_t pairs[K / 2 * N] ALIGNED;
  for (int k = 0; k < K / 2; k++) {
    const uint16_t *even = &B[2 * k * stride], *odd = even + stride;
    if (N % 32) for (int n = 0; n < N; n++) pairs[k * N + n] = even[n] | (uint32_t)odd[n] << 16;
    else for (int n = 0; n < N; n += 32) {
      h32 a = *(h32*)&even[n], b = *(h32*)&odd[n];
      *(h32*)&pairs[k * N + n] = SHUFFLE(a, b, HALVES(0));
      *(h32*)&pairs[k * N + n + 16] = SHUFFLE(a, b, HALVES(16));
    }
  }
  product_of_own_pairs(M, N, K, A, pairs, C);
}
INLINE void product_bf16_transposed(const int M, const int N, const int K, const uint16_t* A, const uint16_t* B, const int64_t stride, float* C) {
  if (TILES_TAKE(K) && M == TILE_ROWS && M < 16) {
    add_tiles_turned(M, N, K, A, B, stride, C);
    return;
  }
  uint32_t pairs[K / 2 * N] ALIGNED;
  turn(N, K / 2, (const float*)B, stride / 2, (float*)pairs);
  product_of_own_pairs(M, N, K, A, pairs, C);
}
#else
#define WIDENED(name, product, ROWS, COLUMNS)                                                         \
  INLINE void name(const int M, const int N, const int K, const uint16_t* A, const uint16_t* B, const int64_t stride, float* C) { \
    float a[M * K] ALIGNED, b[K * N] ALIGNED;                                                         \
    for (int i = 0; i < M * K; i++) a[i] = bf16_to_f32(A[i]);                                         \
    for (int i = 0; i < ROWS; i++) for (int j = 0; j < COLUMNS; j++) b[i * COLUMNS + j] = bf16_to_f32(B[i * stride + j]); \
    product(M, N, K, a, b, COLUMNS, C);                                                               \
  }
WIDENED(product_bf16, product, K, N)
WIDENED(product_bf16_transposed, product_transposed, N, K)
#endif
#endif

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
