// The microkernel in AVX-512: 24 accumulator registers, so as many rows as NR vectors of weights leave room for.
#pragma once

namespace milkweed {
namespace ISA {

constexpr int kStepMultiple = 1;

static constexpr int microkernel_rows(int nr) { return 24 / nr; }

// sum += dot products of one k-step, the same 4 bytes of a row in all lanes. Not the intrinsics: with them gcc 12 keeps the
// sums in memory.
template <class T>
static inline void dot_add(typename T::Sum& sum, __m512i row, __m512i weights) {
  if constexpr (T::kPerStep == 4) asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(row), "v"(weights));
#if defined(__AVX512BF16__)
  else asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(row), "v"(weights));
#else
  else {
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
    sum = fma((f32x16)_mm512_slli_epi32(row, 16), (f32x16)_mm512_slli_epi32(weights, 16), sum);
    sum = fma((f32x16)_mm512_and_si512(row, odd), (f32x16)_mm512_and_si512(weights, odd), sum);
  }
#endif
}

// Not inlined, for the same reason.
template <class T, int NR>
__attribute__((noinline)) static void gemm(const void* rows, long ld, const void* panel, int steps, const Overflow&,
                                           void* sums, long ld_sums, int) {
  constexpr int MR = microkernel_rows(NR);
  typename T::Sum sum[MR][NR];
#pragma GCC unroll 12
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) sum[r][j] = typename T::Sum{};
  const char* a = (const char*)rows;
  const char* w = (const char*)panel;
  for (int k = 0; k < steps; k++, a += 4, w += NR * 64) {
    __m512i weights[NR];
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) weights[j] = _mm512_loadu_si512(w + 64 * j);
#pragma GCC unroll 12
    for (int r = 0; r < MR; r++) {
      const __m512i row = _mm512_set1_epi32(load<int32_t>(a + r * ld));
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) dot_add<T>(sum[r][j], row, weights[j]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) store((float*)sums + r * ld_sums + kLanes * j, sum[r][j]);
}

}  // namespace ISA
}  // namespace milkweed
