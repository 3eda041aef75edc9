// LayerNorms and linear layers on a tile of rows.
#pragma once

#include "product.h"
#include "program.h"

namespace milkweed {
namespace ISA {

constexpr int kMostRows = 32, kMostNr = 4;

// Writes sixteen numbers in groups that each have a place of their own.
template <class V>
static inline void scatter(char* row, const int32_t* places, int group, V v) {
  constexpr int bytes = sizeof(V) / kLanes;
  if (group == 16) return store(row + bytes * places[0], v);
  const char* from = (const char*)&v;
  if (group == 8) {
    memcpy(row + bytes * places[0], from, 8 * bytes);
    memcpy(row + bytes * places[1], from + 8 * bytes, 8 * bytes);
  } else if (group == 4) {
    for (int i = 0; i < 4; i++) memcpy(row + bytes * places[i], from + 4 * bytes * i, 4 * bytes);
  } else {
    for (int i = 0; i < kLanes; i++) memcpy(row + bytes * places[i], from + bytes * i, bytes);
  }
}

template <int TO>
static inline void put(char* row, const int32_t* places, int group, f32x16 v) {
  if constexpr (TO == kU8) scatter(row, places, group, to_u8(v));
  else if constexpr (TO == kBF16) scatter(row, places, group, to_bf16(v));
  else scatter(row, places, group, v);
}

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));

template <class GROUP>
static inline void add(char* row, const int32_t* places, f32x16 v) {
  for (unsigned i = 0; i < sizeof v / sizeof(GROUP); i++) {
    float* at = (float*)row + places[i];
    store(at, load<GROUP>(at) + load<GROUP>((const char*)&v + i * sizeof(GROUP)));
  }
}

static inline void add(char* row, const int32_t* places, int group, f32x16 v) {
  if (group == 16) {
    float* at = (float*)row + places[0];
    return store(at, load<f32x16>(at) + v);
  }
  if (group == 8) return add<f32x8>(row, places, v);
  if (group == 4) return add<f32x4>(row, places, v);
  for (int i = 0; i < kLanes; i++) ((float*)row)[places[i]] += v[i];
}

template <class T>
static inline f32x16 as_float(const void* sums) {
  if constexpr (kIsInteger<T>) return to_f32(load<i32x16>(sums));
  else return load<f32x16>(sums);
}

// What becomes of the sums of some rows by 16 outputs.
template <class T, int EPILOGUE, int TO>
static inline void finish(const Stage& s, const char* base, int output, const float* sums, long ld_sums, int rows,
                          char* to, long ld_to) {
  const f32x16 bias = load<f32x16>((const float*)(base + s.bias) + output);
  const f32x16 scale = load<f32x16>((const float*)(base + s.scale) + output);
  f32x16 scale2{}, bias2{};
  if constexpr ((EPILOGUE == kGelu || EPILOGUE == kSilu) && TO == kU8) {
    scale2 = load<f32x16>((const float*)(base + s.scale2) + output);
    bias2 = load<f32x16>((const float*)(base + s.bias2) + output);
  }
  const int group = s.group;  // read once: what is stored below may be anything
  const int32_t* places = (const int32_t*)(base + s.places) + output / group;
  for (int r = 0; r < rows; r++, sums += ld_sums, to += ld_to) {
    f32x16 v = as_float<T>(sums);
    v = T::kPerStep == 4 ? fma(v, scale, bias) : v + bias;
    if constexpr (EPILOGUE == kGelu) {
      if constexpr (TO == kU8) v = fma(gelu_coarse(v), scale2, bias2);
      else v = gelu_fine(v);
    }
    if constexpr (EPILOGUE == kSilu || EPILOGUE == kSiluAdd) {
      v = silu(v);
      if constexpr (TO == kU8) v = fma(v, scale2, bias2);
    }
    if constexpr (EPILOGUE == kAdd || EPILOGUE == kSiluAdd) {
      add(to, places, group, v);
    } else {
      put<TO>(to, places, group, v);
    }
  }
}

template <class T, int EPILOGUE, int TO>
static void factor(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  alignas(64) float sums[kMostRows * kMostNr * kLanes];
  const int width = kLanes * s.nr, at_once = rows_at_once(s.nr);
  const int k = (s.inputs + T::kPerStep - 1) / T::kPerStep, steps = (k + kSteps - 1) / kSteps * kSteps;
  const long panel_bytes = steps * width * 4L;
  const int32_t *rests = (const int32_t*)(base + s.rests), *rest_steps = rests + s.blocks * s.outputs / width + 1;
  const auto finish_all = [&](int output, int r) {
    const int here = rows - r < at_once ? rows - r : at_once;
    for (int j = 0; j < width; j += kLanes)
      finish<T, EPILOGUE, TO>(s, base, output + j, sums + j, width, here, to + r * ld_to, ld_to);
  };
#if defined(__AMX_INT8__)
  int last = -1, last_row = 0;  // what has been started
  // A few rows go by all panels of a block before the next rows do, where the second cache keeps those panels.
  const int span = panel_bytes * s.outputs / width <= kPanelBytes ? at_once : rows;
#else
  const int span = rows;
#endif
  for (int block = 0; block < s.blocks; block++) {
    const char* inputs = from + (long)block * s.inputs * sizeof(typename T::Element);
    for (int begin = 0; begin < rows; begin += span) {
      const int end = rows - begin < span ? rows : begin + span;
      for (int output = 0; output < s.outputs; output += width) {
        const int first = block * s.outputs + output, number = first / width;
        const char* panel = base + s.weights + number * panel_bytes;
        const int32_t* rest = rests + number;
        Rests some;
        if (s.rests) some = {base + s.rest_weights + rest[0] * 4L * width, rest_steps + rest[0], rest[1] - rest[0]};
        for (int r = begin; r < end; r += at_once) {
#if defined(__AMX_INT8__)
          // A product begins before the sums of the one before are finished: some of both runs at once.
          if (last >= 0) take(sums, width, rows - last_row);
          start<T>(inputs + r * ld_from, ld_from, panel, steps, rows - r);
          if (last >= 0) finish_all(last, last_row);
          last = first, last_row = r;
#else
          multiply<T>(s.nr, inputs + r * ld_from, ld_from, panel, steps, some, sums, width, s.nr);
          finish_all(first, r);
#endif
        }
      }
    }
  }
#if defined(__AMX_INT8__)
  take(sums, width, rows - last_row);
  finish_all(last, last_row);
#endif
}

template <class T>
static void factor(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  if (s.epilogue == kAdd) return factor<T, kAdd, kF32>(s, base, from, ld_from, to, ld_to, rows);
  if (s.epilogue == kSiluAdd) return factor<T, kSiluAdd, kF32>(s, base, from, ld_from, to, ld_to, rows);
  if (s.epilogue == kGelu) {
    if (s.to_type == kU8) return factor<T, kGelu, kU8>(s, base, from, ld_from, to, ld_to, rows);
    if (s.to_type == kBF16) return factor<T, kGelu, kBF16>(s, base, from, ld_from, to, ld_to, rows);
    return factor<T, kGelu, kF32>(s, base, from, ld_from, to, ld_to, rows);
  }
  if (s.epilogue == kSilu) {
    if (s.to_type == kU8) return factor<T, kSilu, kU8>(s, base, from, ld_from, to, ld_to, rows);
    return factor<T, kSilu, kBF16>(s, base, from, ld_from, to, ld_to, rows);
  }
  if (s.to_type == kU8) return factor<T, kStore, kU8>(s, base, from, ld_from, to, ld_to, rows);
  if (s.to_type == kBF16) return factor<T, kStore, kBF16>(s, base, from, ld_from, to, ld_to, rows);
  return factor<T, kStore, kF32>(s, base, from, ld_from, to, ld_to, rows);
}

constexpr int kNormRows = 4;  // rows that do not wait for each other's sums

// LayerNorm over `inputs` columns, a multiple of 16; the mean first, then the squares about it.
template <int TO>
static void norm(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  const float* gain = (const float*)(base + s.scale);
  const float* shift = (const float*)(base + s.bias);
  const int32_t* places = (const int32_t*)(base + s.places);
  const int n = s.inputs, per = kLanes / s.group;
  for (int r = 0; r < rows; r += kNormRows) {
    const int here = rows - r < kNormRows ? rows - r : kNormRows;
    const float* x[kNormRows];
    f32x16 mean[kNormRows] = {}, rate[kNormRows] = {};
    for (int i = 0; i < kNormRows; i++) x[i] = (const float*)(from + (r + (i < here ? i : 0)) * ld_from);
    for (int c = 0; c < n; c += kLanes)
#pragma GCC unroll 4
      for (int i = 0; i < kNormRows; i++) mean[i] += load<f32x16>(x[i] + c);
#pragma GCC unroll 4
    for (int i = 0; i < kNormRows; i++) mean[i] = all(sum(mean[i]) / n);
    for (int c = 0; c < n; c += kLanes)
#pragma GCC unroll 4
      for (int i = 0; i < kNormRows; i++) {
        const f32x16 d = load<f32x16>(x[i] + c) - mean[i];
        rate[i] = fma(d, d, rate[i]);
      }
#pragma GCC unroll 4
    for (int i = 0; i < kNormRows; i++) rate[i] = all(1 / __builtin_sqrtf(sum(rate[i]) / n + s.eps));
    for (int c = 0, g = 0; c < n; c += kLanes, g += per) {
      const f32x16 a = load<f32x16>(gain + c), b = load<f32x16>(shift + c);
#pragma GCC unroll 4
      for (int i = 0; i < kNormRows; i++)
        if (i < here)
          put<TO>(to + (r + i) * ld_to, places + g, s.group, fma((load<f32x16>(x[i] + c) - mean[i]) * rate[i], a, b));
    }
  }
}

}  // namespace ISA
}  // namespace milkweed
