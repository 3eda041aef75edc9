// The one product that everything else is made of: rows of 8-bit or bfloat16 numbers by a packed panel of weights.
//
// A panel holds 16 NR outputs: [k-step][output][4 bytes], where a k-step is 4 numbers of 8 bits or 2 of bfloat16 (or, in
// an attention of AVX2, of int16). Inputs of 8 bits have no sign, weights have one. AMX reads the same layout as tiles of
// 16 k-steps by 16 outputs, and AVX2 takes two at once. So there the weights have a multiple of so many k-steps, filled up
// with zeros, and inputs behind the last one are read: whatever lies there meets those zeros, and is to be a finite number.
//
// Each instruction set defines
//   kSteps            panels hold a multiple of so many k-steps
//   rows_at_once(NR)  rows of one call
//   multiply<T, NR>   sums (rows, ld_sums) of 4 bytes = rows (`ld` bytes apart) by a panel of `steps` k-steps, and by its
//                     rests; where `wanted` is less than NR, only so many vectors of a row have to be right
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

// More k-steps of a panel, in any order: what was left out of its weights, so that sums fit 16 bits. Of AVX2 alone.
struct Rests {
  const char* weights = nullptr;
  const int32_t* steps = nullptr;  // whose inputs they are multiplied by
  int count = 0;
};

template <class T>
constexpr bool kIsInteger = std::is_same_v<typename T::Sum, i32x16>;

}  // namespace ISA
}  // namespace milkweed

#if defined(__AMX_INT8__)
#include "product_amx.h"
#elif defined(__AVX512VNNI__)
#include "product_avx512.h"
#elif defined(__AVX2__)
#include "product_avx2.h"
#else
#include "product_plain.h"
#endif

namespace milkweed {
namespace ISA {

template <class T>
static inline void multiply(int nr, const void* rows, long ld, const void* panel, int steps, const Rests& rests, void* sums,
                            long ld_sums, int wanted) {
  if (nr == 2) return multiply<T, 2>(rows, ld, panel, steps, rests, sums, ld_sums, wanted);
#if !defined(__AMX_INT8__)
  if (nr == 3) return multiply<T, 3>(rows, ld, panel, steps, rests, sums, ld_sums, wanted);
  multiply<T, 4>(rows, ld, panel, steps, rests, sums, ld_sums, wanted);
#endif
}

}  // namespace ISA
}  // namespace milkweed
