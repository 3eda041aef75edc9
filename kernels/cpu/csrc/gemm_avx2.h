// The microkernel in AVX2: 4 rows by 16 outputs, two accumulator registers a row.
#pragma once

namespace milkweed {
namespace ISA {

#if defined(__AVXVNNI__)
constexpr int kStepMultiple = 1;
#else
constexpr int kStepMultiple = 2;
#endif

static constexpr int microkernel_rows(int) { return 4; }

// sum += dot products of 4 bytes of a row by 4 bytes of each of 8 outputs, in N k-steps.
template <class T, int N>
static inline __m256i dot_add(__m256i sum, const __m256i (&row)[N], const __m256i (&weights)[N]) {
#if defined(__AVXVNNI__)
  static_assert(N == 1);
  if constexpr (T::kPerStep == 4) return _mm256_dpbusd_avx_epi32(sum, row[0], weights[0]);
  else return _mm256_dpwssd_avx_epi32(sum, row[0], weights[0]);
#else
  if constexpr (T::kPerStep == 4) {
    // Two k-steps make 16-bit sums of four products: packing.py has moved what would overflow to `overflow`.
    __m256i pairs = _mm256_maddubs_epi16(row[0], weights[0]);
    for (int i = 1; i < N; i++) pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(row[i], weights[i]));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  } else {
    for (int i = 0; i < N; i++) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(row[i], weights[i]));
    return sum;
  }
#endif
}

template <class T, int NR>
static inline void gemm_int(const char* rows, long ld, const char* panel, int steps, const Overflow& overflow, float* sums,
                            long ld_sums, int nr_used) {
  constexpr int MR = microkernel_rows(NR);
  for (int j = 0; j < nr_used; j++) {
    __m256i sum[MR][2] = {};
    const auto add = [&](auto n, const char* a, const char* w) {
      constexpr int N = decltype(n)::value;
      __m256i low[N], high[N], row[N];
      for (int i = 0; i < N; i++) low[i] = load<__m256i>(w + i * NR * 64), high[i] = load<__m256i>(w + i * NR * 64 + 32);
#pragma GCC unroll 4
      for (int r = 0; r < MR; r++) {
        for (int i = 0; i < N; i++) row[i] = _mm256_set1_epi32(load<int32_t>(a + r * ld + 4 * i));
        sum[r][0] = dot_add<T>(sum[r][0], row, low);
        sum[r][1] = dot_add<T>(sum[r][1], row, high);
      }
    };
    const char *a = rows, *w = panel + 64 * j;
#pragma GCC unroll 2
    for (int k = 0; k < steps; k += kStepMultiple, a += 4 * kStepMultiple, w += kStepMultiple * NR * 64)
      add(std::integral_constant<int, kStepMultiple>(), a, w);
    for (int k = 0; k < overflow.count; k++)
      add(std::integral_constant<int, 1>(), rows + 4 * overflow.steps[k], overflow.weights + k * NR * 64 + 64 * j);
#pragma GCC unroll 4
    for (int r = 0; r < MR; r++)
      for (int half = 0; half < 2; half++) store(sums + r * ld_sums + kLanes * j + 8 * half, sum[r][half]);
  }
}

// bfloat16 by FMA of float32: rows are widened once for all outputs of a panel, weights as they are loaded.
template <int NR>
static inline void gemm_bf16(const char* rows, long ld, const char* panel, int steps, float* sums, long ld_sums,
                             int nr_used) {
  constexpr int MR = microkernel_rows(NR), kChunk = 128;
  alignas(32) float widened[MR][2 * kChunk + 8];
  for (int first = 0; first < steps; first += kChunk) {
    const int count = steps - first < kChunk ? steps - first : kChunk;
    for (int r = 0; r < MR; r++)
      for (int k = 0; k < count; k += 4)
        store(widened[r] + 2 * k, _mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(rows + r * ld + 4L * (first + k))), 16));
    for (int j = 0; j < nr_used; j++) {
      __m256 sum[MR][2];
#pragma GCC unroll 4
      for (int r = 0; r < MR; r++)
        for (int half = 0; half < 2; half++)
          sum[r][half] = first ? load<__m256>(sums + r * ld_sums + kLanes * j + 8 * half) : __m256{};
      const char* w = panel + 64L * (NR * first + j);
      for (int k = 0; k < count; k++, w += NR * 64) {
        const __m256i low = load<__m256i>(w), high = load<__m256i>(w + 32), odd = _mm256_set1_epi32((int)0xffff0000);
        const __m256 even_low = (__m256)_mm256_slli_epi32(low, 16), even_high = (__m256)_mm256_slli_epi32(high, 16);
#pragma GCC unroll 4
        for (int r = 0; r < MR; r++) {
          const __m256 row = _mm256_broadcast_ss(widened[r] + 2 * k);
          sum[r][0] = _mm256_fmadd_ps(row, even_low, sum[r][0]);
          sum[r][1] = _mm256_fmadd_ps(row, even_high, sum[r][1]);
        }
        const __m256 odd_low = (__m256)_mm256_and_si256(low, odd), odd_high = (__m256)_mm256_and_si256(high, odd);
#pragma GCC unroll 4
        for (int r = 0; r < MR; r++) {
          const __m256 row = _mm256_broadcast_ss(widened[r] + 2 * k + 1);
          sum[r][0] = _mm256_fmadd_ps(row, odd_low, sum[r][0]);
          sum[r][1] = _mm256_fmadd_ps(row, odd_high, sum[r][1]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < MR; r++)
        for (int half = 0; half < 2; half++) store(sums + r * ld_sums + kLanes * j + 8 * half, sum[r][half]);
    }
  }
}

template <class T, int NR>
static inline void gemm(const void* rows, long ld, const void* panel, int steps, const Overflow& overflow, void* sums,
                        long ld_sums, int nr_used) {
  const char *r = (const char*)rows, *w = (const char*)panel;
  if constexpr (kIsInteger<T>) gemm_int<T, NR>(r, ld, w, steps, overflow, (float*)sums, ld_sums, nr_used);
  else gemm_bf16<NR>(r, ld, w, steps, (float*)sums, ld_sums, nr_used);
}

}  // namespace ISA
}  // namespace milkweed
