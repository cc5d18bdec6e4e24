/* Numbers as Triton has them: conversions that round to nearest even, minima and maxima with their rules for NaN,
 * division that does not trap, and exponentials that C compilers turn into vector code (no branch, no call).
 *
 * A bf16 or fp16 value is a float that such a number can hold; only in memory does it have 16 bits. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CLAMP(x, low, high) ((int)((x) < (low) ? (low) : (x) > (high) ? (high) : (x)))

INLINE int32_t bits_of_f32(float x) { int32_t u; memcpy(&u, &x, 4); return u; }
INLINE float f32_of_bits(int32_t u) { float x; memcpy(&x, &u, 4); return x; }
INLINE int64_t bits_of_f64(double x) { int64_t u; memcpy(&u, &x, 8); return u; }
INLINE double f64_of_bits(int64_t u) { double x; memcpy(&x, &u, 8); return x; }
#define BITS(x) ((uint32_t)bits_of_f32(x))
#define FLOAT(u) f32_of_bits((int32_t)(u))

/* ---- 16 bits */
INLINE float bf16_to_f32(uint16_t h) { return FLOAT((uint32_t)h << 16); }
INLINE uint16_t bf16_of_f32(float x) { return (uint16_t)(BITS(x) >> 16); } /* of a number that was rounded */
INLINE float round_bf16(float x) {
  uint32_t u = BITS(x), rounded = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
  return FLOAT(x != x ? 0x7fc00000u : rounded);
}
/* The exponent is put in its place and its bias made good by a product, which does subnormals too. */
INLINE float f16_to_f32(uint16_t h) {
  uint32_t u = BITS(FLOAT((uint32_t)(h & 0x7fff) << 13) * 0x1p112f);
  u = (h & 0x7c00) == 0x7c00 ? u | 0x7f800000u : u;
  return FLOAT(u | (uint32_t)(h & 0x8000) << 16);
}
INLINE uint16_t f16_of_f32(float x) {
  uint32_t u = BITS(x), sign = u >> 16 & 0x8000u, m = u & 0x7fffffffu;
  uint32_t normal = (m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13;
  uint32_t small = BITS(FLOAT(m) + 0.5f) - 0x3f000000u; /* 0.5's last bit is 2^-24: the sum rounds there */
  uint32_t h = m < 0x38800000u ? small : normal;
  h = m >= 0x477ff000u ? 0x7c00u : h;
  h = m > 0x7f800000u ? 0x7e00u : h;
  return (uint16_t)(h | sign);
}
INLINE float round_f16(float x) { return f16_to_f32(f16_of_f32(x)); }

/* ---- 8 bits: what is too large becomes the largest, as a GPU's conversion (satfinite) has it */
INLINE float e4m3_to_f32(uint8_t c) {
  float x = FLOAT((uint32_t)(c & 0x7f) << 20) * 0x1p120f;
  x = (c & 0x7f) == 0x7f ? NAN : x;
  return FLOAT((BITS(x) & 0x7fffffffu) | (uint32_t)(c & 0x80) << 24);
}
INLINE uint8_t e4m3_of_f32(float x) {
  uint32_t u = BITS(x), sign = u >> 24 & 0x80u, m = u & 0x7fffffffu;
  uint32_t normal = (m - (120u << 23) + (1u << 19) - 1u + (m >> 20 & 1u)) >> 20;
  uint32_t small = BITS(FLOAT(m) + 0x1p14f) - BITS(0x1p14f); /* 2^14: its last bit is the least subnormal */
  uint32_t c = m < (121u << 23) ? small : normal;
  c = c > 0x7eu ? 0x7eu : c;
  return (uint8_t)((m > 0x7f800000u ? 0x7fu : c) | sign);
}

/* ---- floats to integers: towards zero, NaN becomes 0, what is too large the nearest */
#define TO_INTEGER(from, F)                                                                           \
  INLINE int32_t i32_of_##from(F x) { return x != x ? 0 : x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : (int32_t)x; } \
  INLINE int64_t i64_of_##from(F x) { return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : (int64_t)x; } \
  INLINE uint32_t u32_of_##from(F x) { return x >= 0x1p32 ? UINT32_MAX : x > 0 ? (uint32_t)x : 0; }   \
  INLINE uint64_t u64_of_##from(F x) { return x >= 0x1p64 ? UINT64_MAX : x > 0 ? (uint64_t)x : 0; }
TO_INTEGER(f32, float)
TO_INTEGER(f64, double)

/* ---- minima and maxima: `num` prefers a number to NaN, `imum` prefers NaN */
#define EXTREMES(F, suffix)                                                                           \
  INLINE F maxnumf##suffix(F a, F b) { return a > b ? a : b == b ? b : a; }                           \
  INLINE F minnumf##suffix(F a, F b) { return a < b ? a : b == b ? b : a; }                           \
  INLINE F maximumf##suffix(F a, F b) { return a != a ? a : a > b ? a : b; }                          \
  INLINE F minimumf##suffix(F a, F b) { return a != a ? a : a < b ? a : b; }
EXTREMES(float, )
EXTREMES(double, _f64)

/* ---- integer division: any result will do for a divisor of 0, but no trap */
#define DIVISION(T, U, N)                                                                             \
  INLINE T divsi_##N(T a, T b) { return b == 0 ? -1 : b == -1 ? (T)(0 - (U)a) : a / b; }              \
  INLINE T remsi_##N(T a, T b) { return b == 0 ? a : b == -1 ? 0 : a % b; }                           \
  INLINE T divui_##N(T a, T b) { return b == 0 ? -1 : (T)((U)a / (U)b); }                             \
  INLINE T remui_##N(T a, T b) { return b == 0 ? a : (T)((U)a % (U)b); }
DIVISION(int8_t, uint8_t, i8)
DIVISION(int16_t, uint16_t, i16)
DIVISION(int32_t, uint32_t, i32)
DIVISION(int64_t, uint64_t, i64)

/* ---- functions */
INLINE float abs_f32(float x) { return FLOAT(BITS(x) & 0x7fffffffu); }
INLINE float floor_f32(float x) { return __builtin_floorf(x); }
INLINE float ceil_f32(float x) { return __builtin_ceilf(x); }
INLINE float sqrt_f32(float x) { return __builtin_sqrtf(x); }
INLINE float rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
/* 2^f for |f| <= 1/2, relative error 2e-8 (a Chebyshev fit) */
INLINE float exp2_of_fraction(float f) {
  float p = 1.5316464e-4f;
  p = p * f + 1.3398875e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5503324e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  return p * f + 1.0f;
}
/* x 2^n in two factors, so that results may be subnormal, or infinite. Subnormal ones take a hundred times as long: for
 * less than the least, minus infinity above all (a masked score), exponentials do not come here. */
INLINE float times_power_of_2(float x, float n) {
  int32_t whole = (int32_t)n, half = whole >> 1;
  return x * FLOAT((uint32_t)(half + 127) << 23) * FLOAT((uint32_t)(whole - half + 127) << 23);
}
INLINE float exp2_f32(float x) {
  float c = x < -150.0f ? 0.0f : x;
  c = c > 129.0f ? 129.0f : c;
  float n = __builtin_rintf(c);
  float y = times_power_of_2(exp2_of_fraction(c - n), n);
  y = x < -150.0f ? 0.0f : y;
  return x != x ? x : y;
}
INLINE float exp_f32(float x) {
  float c = x < -105.0f ? 0.0f : x;
  c = c > 90.0f ? 90.0f : c;
  float n = __builtin_rintf(c * 1.44269504f);
  float f = ((c - n * 0.693359375f) + n * 2.12194440e-4f) * 1.44269504f; /* ln 2 in two parts (Cody and Waite) */
  float y = times_power_of_2(exp2_of_fraction(f), n);
  y = x < -105.0f ? 0.0f : y;
  return x != x ? x : y;
}
/* log2 of m in [sqrt(1/2), sqrt(2)) from the series of artanh, s = (m - 1) / (m + 1); returned as 2^e m's (e, log2 m) */
INLINE float log2_parts(float x, float* e) {
  int is_small = x < 0x1p-126f;
  uint32_t u = BITS(is_small ? x * 0x1p24f : x);
  int32_t n = (int32_t)(u - 0x3f3504f3u) >> 23;
  float m = FLOAT(u - ((uint32_t)n << 23)), s = (m - 1.0f) / (m + 1.0f), q = s * s;
  float p = 0.32059890f; /* 2 / (9 ln 2) */
  p = p * q + 0.41219858f;
  p = p * q + 0.57707802f;
  p = p * q + 0.96179669f;
  *e = (float)(n - (is_small ? 24 : 0));
  return s * (p * q + 2.8853901f);
}
INLINE float log_of_special(float x, float y) {
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x == INFINITY || x != x ? x : y;
}
INLINE float log2_f32(float x) {
  float e, y = log2_parts(x, &e);
  return log_of_special(x, e + y);
}
INLINE float log_f32(float x) {
  float e, y = log2_parts(x, &e);
  return log_of_special(x, e * 0.69314718f + y * 0.69314718f);
}
INLINE float sin_f32(float x) { return sinf(x); }
INLINE float cos_f32(float x) { return cosf(x); }
INLINE float tanh_f32(float x) { return tanhf(x); }
INLINE float erf_f32(float x) { return erff(x); }
#define abs_f64 fabs
#define floor_f64 floor
#define ceil_f64 ceil
#define sqrt_f64 sqrt
#define rsqrt_f64(x) (1.0 / sqrt(x))
#define exp_f64 exp
#define exp2_f64 exp2
#define log_f64 log
#define log2_f64 log2
#define sin_f64 sin
#define cos_f64 cos
#define tanh_f64 tanh
#define erf_f64 erf
