// Vectors of 16 lanes in the compiler's vector types, on AVX2 pairs of 8: one source for all instruction sets.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace milkweed {
namespace ISA {

constexpr int kLanes = 16;

typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

#if defined(__AVX2__) && !defined(__AVX512F__)
#define MILKWEED_AVX2_PAIRS 1
// Registers hold 8 lanes, and gcc 12 would move a vector of 16 through memory, and through general registers, between
// its operations: so it is a pair of registers.
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

// Always inlined: a call would pass vectors through memory.
template <class V>
static inline __attribute__((always_inline)) void copy(V& to, const void* from) {
  memcpy(&to, from, sizeof to);
}

template <class V>
static inline void store(void* to, V v) {
  memcpy(to, &v, sizeof v);
}

#if defined(MILKWEED_AVX2_PAIRS)
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

static inline f32x16 set1(float v) { return f32x16{} + v; }

// Vectors as wide as a register: arrays of them stay in registers, which arrays of 16 lanes do on AVX-512 alone.
#if defined(__AVX512F__)
constexpr int kNativeLanes = 16;
#elif defined(__AVX2__)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif
typedef float native_f32 __attribute__((vector_size(4 * kNativeLanes)));
typedef uint32_t native_u32 __attribute__((vector_size(4 * kNativeLanes)));
typedef std::make_integer_sequence<int, kNativeLanes> NativeIndices;

// Lanes of two registers by constant indices, those of b from kNativeLanes on.
#if defined(__clang__) || __GNUC__ >= 12
#define MILKWEED_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MILKWEED_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, native_u32{__VA_ARGS__})
#endif

// a * b + c in one rounding where the processor has it.
static inline native_f32 fma(native_f32 a, native_f32 b, native_f32 c) {
#if defined(__AVX512F__)
  return (native_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (native_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

#if defined(MILKWEED_AVX2_PAIRS)
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
#elif !defined(__AVX512F__)
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return a * b + c; }
#endif

// a / b to the last bit, by b's reciprocal and one correction (Markstein), which are faster than a division.
static inline f32x16 divide(f32x16 a, float b) {
#if defined(__AVX2__)
  const f32x16 reciprocal = set1(1 / b), quotient = a * reciprocal;
  return fma(fma(-quotient, set1(b), a), reciprocal, quotient);
#else
  return a / set1(b);
#endif
}

static inline native_f32 broadcast(const float* v) {
#if defined(__AVX512F__)
  return (native_f32)_mm512_set1_ps(*v);
#elif defined(__AVX2__)
  return (native_f32)_mm256_set1_ps(*v);
#else
  return native_f32{*v, *v, *v, *v};
#endif
}

// Not just `a < b ? a : b`: gcc 12 makes two instructions of it.
#if defined(__AVX512F__)
static inline f32x16 min(f32x16 a, f32x16 b) { return (f32x16)_mm512_min_ps((__m512)a, (__m512)b); }
static inline f32x16 max(f32x16 a, f32x16 b) { return (f32x16)_mm512_max_ps((__m512)a, (__m512)b); }
#elif defined(MILKWEED_AVX2_PAIRS)
static inline f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
static inline f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
#else
static inline f32x16 min(f32x16 a, f32x16 b) { return a < b ? a : b; }
static inline f32x16 max(f32x16 a, f32x16 b) { return a > b ? a : b; }
#endif

// v clamped to -limit .. limit.
static inline f32x16 clamp_abs(f32x16 v, float limit) {
#if defined(__AVX512DQ__)
  return (f32x16)_mm512_range_ps((__m512)v, (__m512)set1(limit), 2);  // the smaller magnitude with the sign of v
#else
  return min(max(v, set1(-limit)), set1(limit));
#endif
}

static inline f32x16 to_f32(i32x16 v) {
#if defined(MILKWEED_AVX2_PAIRS)
  return {_mm256_cvtepi32_ps((__m256i)v.low), _mm256_cvtepi32_ps((__m256i)v.high)};
#else
  return __builtin_convertvector(v, f32x16);
#endif
}

// The nearest integer, ties to even; |v| < 2^22.
static inline i32x16 round_to_i32(f32x16 v) {
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtps_epi32((__m512)v);
#else
  const f32x16 magic = set1(12582912.0f);  // 1.5 * 2^23: its last bit is worth 1
  return (i32x16)(v + magic) - (i32x16)magic;
#endif
}

// The nearest integer, saturated to 0 .. 255.
static inline u8x16 to_u8(f32x16 v) {
#if defined(__AVX512F__)
  return (u8x16)_mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(_mm512_max_ps((__m512)v, _mm512_setzero_ps())));
#elif defined(MILKWEED_AVX2_PAIRS)
  v = min(v, set1(255));
  const __m256i words = _mm256_packus_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
  const __m256i bytes = _mm256_packus_epi16(_mm256_permute4x64_epi64(words, 0xd8), words);
  return (u8x16)_mm256_castsi256_si128(_mm256_permute4x64_epi64(bytes, 0xd8));
#else
  return __builtin_convertvector(round_to_i32(min(max(v, set1(0)), set1(255))), u8x16);
#endif
}

static inline u16x16 to_bf16(f32x16 v) {
#if defined(__AVX512BF16__)
  return (u16x16)_mm512_cvtneps_pbh((__m512)v);
#else
  u32x16 bits = (u32x16)v;
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#if defined(MILKWEED_AVX2_PAIRS)
  return (u16x16)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)bits.low, (__m256i)bits.high), 0xd8);
#else
  return __builtin_convertvector(bits, u16x16);
#endif
#endif
}

static inline u32x16 zero_extend(u16x16 v) {
#if defined(MILKWEED_AVX2_PAIRS)
  const __m256i x = (__m256i)v;
  typedef u32x16::Half Half;
  return {(Half)_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), (Half)_mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
#else
  return __builtin_convertvector(v, u32x16);
#endif
}

static inline f32x16 from_bf16(u16x16 v) { return (f32x16)(zero_extend(v) << 16); }

static inline float reduce_add(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(MILKWEED_AVX2_PAIRS)
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

static inline float reduce_max(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(MILKWEED_AVX2_PAIRS)
  const __m256 eight = _mm256_max_ps(v.low, v.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  float largest = v[0];
  for (int i = 1; i < kLanes; i++) largest = v[i] > largest ? v[i] : largest;
  return largest;
#endif
}

// GELU(x) = x (0.5 + z P(z^2)), z = x clamped; the coefficients are minimax fits.
template <int N>
static inline f32x16 gelu_polynomial(f32x16 x, float clamp, const float (&c)[N]) {
  const f32x16 z = clamp_abs(x, clamp), s = z * z;
  f32x16 p = set1(c[N - 1]);
#pragma GCC unroll 16
  for (int i = N - 2; i >= 0; i--) p = fma(p, s, set1(c[i]));
  return x * fma(z, p, set1(0.5f));
}

// Maximum error 5.4e-3, half a step of 8 bits.
static inline f32x16 gelu_coarse(f32x16 x) {
  static constexpr float c[] = {0.404176062f, -0.0702755104f, 0.0101779622f, -0.000868390025f, 3.09993306e-05f};
  return gelu_polynomial(x, 3.0f, c);
}

// Maximum error 2.9e-4, below bfloat16's rounding.
static inline f32x16 gelu_fine(f32x16 x) {
  static constexpr float c[] = {0.398226881f,    -0.0650707283f,  0.00900123685f, -0.000859696173f,
                                5.20930584e-05f, -1.72420719e-06f, 1.93634599e-08f, 2.03392351e-10f};
  return gelu_polynomial(x, 3.8f, c);
}

// 2^x for x <= 0; relative error 1e-4, far below bfloat16's. Below 2^-100 it is 2^-100.
static inline f32x16 exp2_of_negative(f32x16 x) {
  x = max(x, set1(-100));
  const i32x16 n = round_to_i32(x);
  const f32x16 f = x - to_f32(n);
  f32x16 p = fma(set1(0.0551715501f), f, set1(0.242611156f));
  p = fma(p, f, set1(0.693261f));
  p = fma(p, f, set1(0.99992807f));
  return (f32x16)((i32x16)p + (n << 23));
}

// SiLU(x) = x / (1 + 2^(-x log2(e))); relative error 1e-4.
static inline f32x16 silu(f32x16 x) {
  const f32x16 e = exp2_of_negative(min(x, -x) * 1.44269504f);
  const i32x16 negative = (i32x16)x >> 31;  // not x < 0: on AVX2 gcc 12 makes a branch a lane of it
  return x * (f32x16)(((i32x16)e & negative) | ((i32x16)set1(1) & ~negative)) / (e + 1);
}

}  // namespace ISA
}  // namespace milkweed
