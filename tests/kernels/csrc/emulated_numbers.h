// bfloat16 and float16: conversions as the hardware rounds them, and two numbers in a word.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace mw::emulator {

inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float fp16_to_float_slowly(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

inline float fp16_to_float(uint16_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (int i = 0; i < 65536; i++) values[i] = fp16_to_float_slowly(static_cast<uint16_t>(i));
    return values;
  }();
  return table[bits];
}

inline uint16_t float_to_fp16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude == 0.0f) return sign;
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // rounds to infinity
  int exponent;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // exponent of the last place
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));  // ties to even
  if (unit == -24) return static_cast<uint16_t>(sign | steps);  // subnormal, or 1024 = the smallest normal
  return static_cast<uint16_t>(sign | (steps + ((unit + 24) << 10)));
}

}  // namespace mw::emulator

namespace mw {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

inline float to_float(bf16 value) { return emulator::bf16_to_float(value.bits); }
inline float to_float(fp16 value) { return emulator::fp16_to_float(value.bits); }

template <class T>
T from_float(float value);
template <>
inline bf16 from_float<bf16>(float value) { return {emulator::float_to_bf16(value)}; }
template <>
inline fp16 from_float<fp16>(float value) { return {emulator::float_to_fp16(value)}; }

template <class T>
uint32_t pack2(float low, float high) {
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}
template <class T>
void unpack2(uint32_t packed, float& low, float& high) {
  low = to_float(T{static_cast<uint16_t>(packed & 0xffffu)});
  high = to_float(T{static_cast<uint16_t>(packed >> 16)});
}

}  // namespace mw
