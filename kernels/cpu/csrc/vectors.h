// Sixteen lanes in the compiler's vector types, with AVX2 in two of eight: one source for all instruction sets.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace milkweed {
namespace ISA {

constexpr int kLanes = 16;

typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

#if defined(__AVX2__) && !defined(__AVX512F__)
#define MILKWEED_HALVES 1
// Registers hold 8 lanes, and gcc 12 would move a vector of sixteen through memory, and through general registers, between
// its operations: so it is two of eight.
template <class T>
struct Pair {
  typedef T Half __attribute__((vector_size(32)));
  Half low, high;

  Pair() = default;
  Pair(Half low, Half high) : low(low), high(high) {}
  Pair(T v) : low(Half{} + v), high(low) {}
  template <class U>
  explicit Pair(Pair<U> bits) : low((Half)bits.low), high((Half)bits.high) {}

  T operator[](int lane) const { return lane < 8 ? low[lane] : high[lane - 8]; }
#define MILKWEED_OPERATOR(op) \
  friend Pair operator op(Pair a, Pair b) { return {a.low op b.low, a.high op b.high}; }
  MILKWEED_OPERATOR(+) MILKWEED_OPERATOR(-) MILKWEED_OPERATOR(*) MILKWEED_OPERATOR(/) MILKWEED_OPERATOR(&) MILKWEED_OPERATOR(|)
#undef MILKWEED_OPERATOR
  friend Pair operator<<(Pair a, int bits) { return {a.low << bits, a.high << bits}; }
  friend Pair operator>>(Pair a, int bits) { return {a.low >> bits, a.high >> bits}; }
  friend Pair<int32_t> operator>(Pair a, Pair b) { return {a.low > b.low, a.high > b.high}; }
  Pair operator-() const { return {-low, -high}; }
  Pair operator~() const { return {~low, ~high}; }
  void operator+=(Pair b) { *this = *this + b; }
};
typedef Pair<float> f32x16;
typedef Pair<int32_t> i32x16;
typedef Pair<uint32_t> u32x16;
#else
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
#endif

// Inlined always: a call would move what a register holds through memory.
template <class V>
static inline __attribute__((always_inline)) void copy(V& to, const void* from) {
  memcpy(&to, from, sizeof to);
}

template <class V>
static inline void store(void* to, V v) {
  memcpy(to, &v, sizeof v);
}

#if defined(MILKWEED_HALVES)
template <class T>
static inline __attribute__((always_inline)) void copy(Pair<T>& to, const void* from) {
  copy(to.low, from);
  copy(to.high, (const char*)from + 32);
}

template <class T>
static inline __attribute__((always_inline)) void store(void* to, Pair<T> v) {
  store(to, v.low);
  store((char*)to + 32, v.high);
}
#endif

template <class V>
static inline __attribute__((always_inline)) V load(const void* from) {
  V v;
  copy(v, from);
  return v;
}

static inline f32x16 all(float v) { return f32x16{} + v; }

// As many lanes as a register has. Arrays of them stay in registers, which those of sixteen lanes do with AVX-512 alone.
#if defined(__AVX512F__)
constexpr int kNative = 16;
#elif defined(__AVX2__)
constexpr int kNative = 8;
#else
constexpr int kNative = 4;
#endif
typedef float native __attribute__((vector_size(4 * kNative)));
typedef uint32_t native_bits __attribute__((vector_size(4 * kNative)));

// a * b + c.
static inline native fused(native a, native b, native c) {
#if defined(__AVX512F__)
  return (native)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (native)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// The same number in all lanes.
static inline native spread(const float* v) {
#if defined(__AVX512F__)
  return (native)_mm512_set1_ps(*v);
#elif defined(__AVX2__)
  return (native)_mm256_set1_ps(*v);
#else
  return native{*v, *v, *v, *v};
#endif
}

// Not `a < b ? a : b` alone, of which gcc 12 makes two instructions.
#if defined(__AVX512F__)
static inline f32x16 smaller(f32x16 a, f32x16 b) { return (f32x16)_mm512_min_ps((__m512)a, (__m512)b); }
static inline f32x16 larger(f32x16 a, f32x16 b) { return (f32x16)_mm512_max_ps((__m512)a, (__m512)b); }
#elif defined(MILKWEED_HALVES)
static inline f32x16 smaller(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
static inline f32x16 larger(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
#else
static inline f32x16 smaller(f32x16 a, f32x16 b) { return a < b ? a : b; }
static inline f32x16 larger(f32x16 a, f32x16 b) { return a > b ? a : b; }
#endif

// v between -most and most.
static inline f32x16 clamped(f32x16 v, float most) {
#if defined(__AVX512DQ__)
  return (f32x16)_mm512_range_ps((__m512)v, (__m512)all(most), 2);  // the smaller magnitude with the sign of v
#else
  return smaller(larger(v, all(-most)), all(most));
#endif
}

// a * b + c in one rounding where the processor has it.
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(MILKWEED_HALVES)
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
#else
  return a * b + c;
#endif
}

static inline f32x16 to_f32(i32x16 v) {
#if defined(MILKWEED_HALVES)
  return {_mm256_cvtepi32_ps((__m256i)v.low), _mm256_cvtepi32_ps((__m256i)v.high)};
#else
  return __builtin_convertvector(v, f32x16);
#endif
}

// To the nearest integer, ties to even; |v| < 2^22.
static inline i32x16 rounded(f32x16 v) {
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtps_epi32((__m512)v);
#else
  const f32x16 magic = all(12582912.0f);  // 1.5 * 2^23: its last bit is worth 1
  return (i32x16)(v + magic) - (i32x16)magic;
#endif
}

// To 8 bits: the nearest integer, at least 0 and at most 255.
static inline u8x16 to_u8(f32x16 v) {
#if defined(__AVX512F__)
  return (u8x16)_mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(_mm512_max_ps((__m512)v, _mm512_setzero_ps())));
#elif defined(MILKWEED_HALVES)
  v = smaller(v, all(255));
  const __m256i words = _mm256_packus_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
  const __m256i bytes = _mm256_packus_epi16(_mm256_permute4x64_epi64(words, 0xd8), words);
  return (u8x16)_mm256_castsi256_si128(_mm256_permute4x64_epi64(bytes, 0xd8));
#else
  return __builtin_convertvector(rounded(smaller(larger(v, all(0)), all(255))), u8x16);
#endif
}

static inline u16x16 to_bf16(f32x16 v) {
#if defined(__AVX512BF16__)
  return (u16x16)_mm512_cvtneps_pbh((__m512)v);
#else
  u32x16 bits = (u32x16)v;
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#if defined(MILKWEED_HALVES)
  return (u16x16)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)bits.low, (__m256i)bits.high), 0xd8);
#else
  return __builtin_convertvector(bits, u16x16);
#endif
#endif
}

static inline u32x16 widened(u16x16 v) {
#if defined(MILKWEED_HALVES)
  const __m256i x = (__m256i)v;
  typedef u32x16::Half Half;
  return {(Half)_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), (Half)_mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
#else
  return __builtin_convertvector(v, u32x16);
#endif
}

static inline f32x16 from_bf16(u16x16 v) { return (f32x16)(widened(v) << 16); }

static inline float sum(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(MILKWEED_HALVES)
  const __m256 eight = _mm256_add_ps(v.low, v.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += v[i];
  return total;
#endif
}

static inline float largest(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(MILKWEED_HALVES)
  const __m256 eight = _mm256_max_ps(v.low, v.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  float found = v[0];
  for (int i = 1; i < kLanes; i++) found = v[i] > found ? v[i] : found;
  return found;
#endif
}

// GELU(x) = x (0.5 + z P(z^2)), z = x clamped; the coefficients are least-maximum fits (fit_gelu.py).
template <int N>
static inline f32x16 gelu_by(f32x16 x, float clamp, const float (&c)[N]) {
  const f32x16 z = clamped(x, clamp), s = z * z;
  f32x16 p = all(c[N - 1]);
#pragma GCC unroll 16
  for (int i = N - 2; i >= 0; i--) p = fma(p, s, all(c[i]));
  return x * fma(z, p, all(0.5f));
}

// Largest error 5.4e-3, half a step of 8 bits.
static inline f32x16 gelu_coarse(f32x16 x) {
  static constexpr float c[] = {0.404176062f, -0.0702755104f, 0.0101779622f, -0.000868390025f, 3.09993306e-05f};
  return gelu_by(x, 3.0f, c);
}

// Largest error 2.9e-4, below bfloat16's rounding.
static inline f32x16 gelu_fine(f32x16 x) {
  static constexpr float c[] = {0.398226881f,    -0.0650707283f,  0.00900123685f, -0.000859696173f,
                                5.20930584e-05f, -1.72420719e-06f, 1.93634599e-08f, 2.03392351e-10f};
  return gelu_by(x, 3.8f, c);
}

// 2^x for x <= 0; relative error 1e-4, far below bfloat16's. Below 2^-100 it is 2^-100.
static inline f32x16 exp2_of_negative(f32x16 x) {
  x = larger(x, all(-100));
  const i32x16 n = rounded(x);
  const f32x16 f = x - to_f32(n);
  f32x16 p = fma(all(0.0551715501f), f, all(0.242611156f));
  p = fma(p, f, all(0.693261f));
  p = fma(p, f, all(0.99992807f));
  return (f32x16)((i32x16)p + (n << 23));
}

// SiLU(x) = x / (1 + 2^(-x log2(e))); off by 1e-4 of its value at most.
static inline f32x16 silu(f32x16 x) {
  const f32x16 e = exp2_of_negative(smaller(x, -x) * 1.44269504f);
  const i32x16 below = (i32x16)x >> 31;  // not x < 0, of which gcc 12 makes a branch a lane with AVX2
  return x * (f32x16)(((i32x16)e & below) | ((i32x16)all(1) & ~below)) / (e + 1);
}

}  // namespace ISA
}  // namespace milkweed
