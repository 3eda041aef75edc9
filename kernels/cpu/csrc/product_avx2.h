// Products in AVX2: four rows by 16 outputs, two vectors of sums a row.
#pragma once

namespace milkweed {
namespace ISA {

constexpr int kSteps = 1;

static constexpr int rows_at_once(int) { return 4; }

struct Tiles {};

// Eight outputs' weights of one k-step, and the same 4 bytes of a row beside each, in the form that is multiplied.
template <class T>
struct Parts;

template <>
struct Parts<I8> {
  __m256i even, odd;  // bytes 0 and 2, bytes 1 and 3, as 16 bits
  static Parts of_weights(__m256i w) {
#if defined(__AVXVNNI__)
    return {w, w};
#else
    return {_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), _mm256_srai_epi16(w, 8)};
#endif
  }
  static Parts of_row(int32_t x) {
#if defined(__AVXVNNI__)
    return {_mm256_set1_epi32(x), _mm256_setzero_si256()};
#else
    return {_mm256_set1_epi32(x & 0x00ff00ff), _mm256_set1_epi32(x >> 8 & 0x00ff00ff)};
#endif
  }
  static __m256i add(__m256i sum, const Parts& row, const Parts& w) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, row.even, w.even);
#else
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(row.even, w.even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(row.odd, w.odd));
#endif
  }
};

template <>
struct Parts<BF16> {
  __m256 even, odd;
  static Parts of_weights(__m256i w) {
    return {(__m256)_mm256_slli_epi32(w, 16), (__m256)_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000))};
  }
  static Parts of_row(int32_t x) { return of_weights(_mm256_set1_epi32(x)); }
  static __m256i add(__m256i sum, const Parts& row, const Parts& w) {
    return (__m256i)_mm256_fmadd_ps(row.odd, w.odd, _mm256_fmadd_ps(row.even, w.even, (__m256)sum));
  }
};

template <class T, int NR>
static inline void multiply(const void* rows, long ld, const void* panel, int steps, void* sums, long ld_sums) {
  constexpr int R = rows_at_once(NR);
  for (int j = 0; j < NR; j++) {
    __m256i sum[R][2];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = __m256i{};
    const char* a = (const char*)rows;
    const char* w = (const char*)panel + 64 * j;
    for (int k = 0; k < steps; k++, a += 4, w += NR * 64) {
      const auto low = Parts<T>::of_weights(load<__m256i>(w)), high = Parts<T>::of_weights(load<__m256i>(w + 32));
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const auto row = Parts<T>::of_row(load<int32_t>(a + r * ld));
        sum[r][0] = Parts<T>::add(sum[r][0], row, low);
        sum[r][1] = Parts<T>::add(sum[r][1], row, high);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      store((float*)sums + r * ld_sums + kLanes * j, sum[r][0]);
      store((float*)sums + r * ld_sums + kLanes * j + 8, sum[r][1]);
    }
  }
}

}  // namespace ISA
}  // namespace milkweed
