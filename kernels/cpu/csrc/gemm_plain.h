// The microkernel in plain C++: the definition that the others are held against.
#pragma once

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
