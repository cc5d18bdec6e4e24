/* Products of tiles: C += A B, all row by row in arrays of floats whose sizes the C compiler knows.
 *
 * A block of C stays in registers while k runs: for each k, one row of B's vectors and one number of A per row of C. */
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
#define AT(p) (*(v16*)(p))
#ifdef __AVX512F__
#define BLOCK_ROWS 8 /* x 2 vectors: 16 of 32 registers */
#else
#define BLOCK_ROWS 4
#endif

#define BLOCK(ROWS, VECTORS)                                                                          \
  {                                                                                                   \
    v16 c[ROWS][VECTORS];                                                                             \
    for (int i = 0; i < ROWS; i++) for (int j = 0; j < VECTORS; j++) c[i][j] = AT(&C[(m + i) * N + n + 16 * j]); \
    for (int k = 0; k < K; k++) {                                                                     \
      v16 b[VECTORS];                                                                                 \
      for (int j = 0; j < VECTORS; j++) b[j] = AT(&B[k * N + n + 16 * j]);                            \
      for (int i = 0; i < ROWS; i++) for (int j = 0; j < VECTORS; j++) c[i][j] += A[(m + i) * K + k] * b[j]; \
    }                                                                                                 \
    for (int i = 0; i < ROWS; i++) for (int j = 0; j < VECTORS; j++) AT(&C[(m + i) * N + n + 16 * j]) = c[i][j]; \
  }

/* A [M, K], B [K, N], C [M, N] */
INLINE void product(const int M, const int N, const int K, const float* A, const float* B, float* C) {
  if (N % 16) {
    for (int m = 0; m < M; m++) for (int k = 0; k < K; k++) for (int n = 0; n < N; n++) C[m * N + n] += A[m * K + k] * B[k * N + n];
    return;
  }
  int m = 0, n;
  for (; m + BLOCK_ROWS <= M; m += BLOCK_ROWS) {
    for (n = 0; n + 32 <= N; n += 32) BLOCK(BLOCK_ROWS, 2)
    for (; n < N; n += 16) BLOCK(BLOCK_ROWS, 1)
  }
  for (; m + 4 <= M; m += 4) {
    for (n = 0; n + 32 <= N; n += 32) BLOCK(4, 2)
    for (; n < N; n += 16) BLOCK(4, 1)
  }
  for (; m < M; m++) {
    for (n = 0; n + 64 <= N; n += 64) BLOCK(1, 4)
    for (; n < N; n += 16) BLOCK(1, 1)
  }
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
INLINE void product_transposed(const int M, const int N, const int K, const float* A, const float* B, float* C) {
  if (M > 8 || K % 16 || N % 16) {
    float T[K * N] ALIGNED;
    for (int n0 = 0; n0 < N; n0 += 16) for (int k0 = 0; k0 < K; k0 += 16)
      for (int k = k0; k < MIN(k0 + 16, K); k++) for (int n = n0; n < MIN(n0 + 16, N); n++) T[k * N + n] = B[n * K + k];
    product(M, N, K, A, T, C);
    return;
  }
  for (int n = 0; n < N; n += 16)
    for (int m = 0; m < M; m++) {
      v16 s[16];
      for (int j = 0; j < 16; j++) s[j] = (v16){0};
      for (int k = 0; k < K; k += 16) for (int j = 0; j < 16; j++) s[j] += AT(&A[m * K + k]) * AT(&B[(n + j) * K + k]);
      AT(&C[m * N + n]) += sums_of_16(s);
    }
}

/* Integers, and doubles: B may lie transposed. */
#define PLAIN_PRODUCT(name, T, R)                                                                     \
  INLINE void name(const int M, const int N, const int K, const T* A, const T* B, R* C) {             \
    for (int m = 0; m < M; m++) for (int k = 0; k < K; k++) for (int n = 0; n < N; n++) C[m * N + n] += (R)A[m * K + k] * (R)B[k * N + n]; \
  }                                                                                                   \
  INLINE void name##_transposed(const int M, const int N, const int K, const T* A, const T* B, R* C) { \
    for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) C[m * N + n] += (R)A[m * K + k] * (R)B[n * K + k]; \
  }
PLAIN_PRODUCT(product_i32, int8_t, int32_t)
PLAIN_PRODUCT(product_f64, double, double)
