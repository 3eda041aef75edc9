// The GEMM microkernel that everything else is made of: rows of 8-bit or bfloat16 numbers by a packed panel of weights.
//
// A panel holds 16 NR outputs: [k-step][output][4 bytes], where a k-step is 4 numbers of 8 bits, as VNNI takes them, or 2 of
// bfloat16 (of int16 in an attention on AVX2). 8-bit inputs are unsigned, weights signed. AMX reads the same layout as tiles
// of 16 k-steps by 16 outputs, and AVX2 two k-steps at once: their panels are padded with zeros to a multiple of k-steps.
// Inputs are read just as far, and whatever lies behind them meets those zeros: it must be finite.
//
// Each instruction set defines
//   kStepMultiple         panels hold a multiple of this many k-steps
//   microkernel_rows(NR)  rows of one call (MR)
//   gemm<T, NR>           sums (MR, ld_sums) of 4 bytes = rows (`ld` bytes apart) by a panel of `steps` k-steps, plus the
//                         panel's overflow; only the first `nr_used` vectors of each row need be right
#pragma once

#include <type_traits>

#include "vectors.h"

namespace milkweed {
namespace ISA {

struct I8 {
  typedef uint8_t Element;
  typedef i32x16 Sum;
  static constexpr int kPerStep = 4;
};

struct BF16 {
  typedef uint16_t Element;
  typedef f32x16 Sum;
  static constexpr int kPerStep = 2;
};

struct I16 {
  typedef int16_t Element;
  typedef i32x16 Sum;
  static constexpr int kPerStep = 2;
};

// The overflow residual of a panel on AVX2 without VNNI: parts of weights whose products would overflow sums of 16 bits, as
// sparse k-steps of their own, added in 32 bits (FBGEMM's acc16 kernels call them outliers).
struct Overflow {
  const char* weights = nullptr;
  const int32_t* steps = nullptr;  // the k-step of the inputs that each is multiplied by
  int count = 0;
};

template <class T>
constexpr bool kIsInteger = std::is_same_v<typename T::Sum, i32x16>;

#if !defined(__AMX_INT8__)
struct AmxTiles {};
#endif

}  // namespace ISA
}  // namespace milkweed

#if defined(__AMX_INT8__)
#include "gemm_amx.h"
#elif defined(__AVX512VNNI__)
#include "gemm_avx512.h"
#elif defined(__AVX2__)
#include "gemm_avx2.h"
#else
// In plain C++: the definition that the others are held against.
namespace milkweed {
namespace ISA {

constexpr int kStepMultiple = 1;

static constexpr int microkernel_rows(int) { return 1; }

static inline float bf16_to_float(uint16_t v) {
  const uint32_t bits = (uint32_t)v << 16;
  return load<float>(&bits);
}

template <class T, int NR>
static inline void gemm(const void* rows, long, const void* panel, int steps, const Overflow&, void* sums, long, int) {
  if constexpr (T::kPerStep == 4) {
    const uint8_t* a = (const uint8_t*)rows;
    const int8_t* w = (const int8_t*)panel;
    int32_t sum[NR * kLanes] = {};
    for (int k = 0; k < steps; k++, a += 4, w += NR * 64)
      for (int o = 0; o < NR * kLanes; o++)
        for (int i = 0; i < 4; i++) sum[o] += a[i] * w[4 * o + i];
    memcpy(sums, sum, sizeof sum);
  } else {
    const uint16_t *a = (const uint16_t*)rows, *w = (const uint16_t*)panel;
    float sum[NR * kLanes] = {};
    for (int k = 0; k < steps; k++, a += 2, w += NR * 32)
      for (int o = 0; o < NR * kLanes; o++)
        for (int i = 0; i < 2; i++) sum[o] += bf16_to_float(a[i]) * bf16_to_float(w[2 * o + i]);
    memcpy(sums, sum, sizeof sum);
  }
}

}  // namespace ISA
}  // namespace milkweed
#endif

namespace milkweed {
namespace ISA {

template <class T>
static inline void gemm(int nr, const void* rows, long ld, const void* panel, int steps, const Overflow& overflow, void* sums,
                        long ld_sums, int nr_used) {
  if (nr == 2) return gemm<T, 2>(rows, ld, panel, steps, overflow, sums, ld_sums, nr_used);
#if !defined(__AMX_INT8__)
  if (nr == 3) return gemm<T, 3>(rows, ld, panel, steps, overflow, sums, ld_sums, nr_used);
  gemm<T, 4>(rows, ld, panel, steps, overflow, sums, ld_sums, nr_used);
#endif
}

}  // namespace ISA
}  // namespace milkweed
