// LayerNorms and block-diagonal linear layers on a tile of rows.
#pragma once

#include "gemm.h"
#include "program.h"

namespace milkweed {
namespace ISA {

constexpr int kMaxRows = 32, kMaxNr = 4;

// Scatters 16 numbers to a row, in groups that stay adjacent.
template <class V>
static inline void scatter(char* row, const int32_t* columns, int group, V v) {
  constexpr int bytes = sizeof(V) / kLanes;
  if (group == 16) return store(row + bytes * columns[0], v);
  const char* from = (const char*)&v;
  if (group == 8) {
    memcpy(row + bytes * columns[0], from, 8 * bytes);
    memcpy(row + bytes * columns[1], from + 8 * bytes, 8 * bytes);
  } else if (group == 4) {
    for (int i = 0; i < 4; i++) memcpy(row + bytes * columns[i], from + 4 * bytes * i, 4 * bytes);
  } else {
    for (int i = 0; i < kLanes; i++) memcpy(row + bytes * columns[i], from + bytes * i, bytes);
  }
}

template <int TO>
static inline void scatter_as(char* row, const int32_t* columns, int group, f32x16 v) {
  if constexpr (TO == kU8) scatter(row, columns, group, to_u8(v));
  else if constexpr (TO == kBF16) scatter(row, columns, group, to_bf16(v));
  else scatter(row, columns, group, v);
}

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));

template <class GROUP>
static inline void scatter_add(char* row, const int32_t* columns, f32x16 v) {
  for (unsigned i = 0; i < sizeof v / sizeof(GROUP); i++) {
    float* at = (float*)row + columns[i];
    store(at, load<GROUP>(at) + load<GROUP>((const char*)&v + i * sizeof(GROUP)));
  }
}

static inline void scatter_add(char* row, const int32_t* columns, int group, f32x16 v) {
  if (group == 16) {
    float* at = (float*)row + columns[0];
    return store(at, load<f32x16>(at) + v);
  }
  if (group == 8) return scatter_add<f32x8>(row, columns, v);
  if (group == 4) return scatter_add<f32x4>(row, columns, v);
  for (int i = 0; i < kLanes; i++) ((float*)row)[columns[i]] += v[i];
}

template <class T>
static inline f32x16 load_as_f32(const void* sums) {
  if constexpr (kIsInteger<T>) return to_f32(load<i32x16>(sums));
  else return load<f32x16>(sums);
}

// Scale, bias, activation and store or addition of the sums of some rows by 16 outputs.
template <class T, int EPILOGUE, int TO>
static inline void epilogue(const Stage& s, const char* base, int output, const float* sums, long ld_sums, int rows,
                            char* to, long ld_to) {
  const f32x16 bias = load<f32x16>((const float*)(base + s.bias) + output);
  const f32x16 scale = load<f32x16>((const float*)(base + s.scale) + output);
  f32x16 scale2{}, bias2{};
  if constexpr ((EPILOGUE == kGelu || EPILOGUE == kSilu) && TO == kU8) {
    scale2 = load<f32x16>((const float*)(base + s.scale2) + output);
    bias2 = load<f32x16>((const float*)(base + s.bias2) + output);
  }
  const int group = s.group;  // read once: for the compiler, the stores below may alias it
  const int32_t* columns = (const int32_t*)(base + s.out_columns) + output / group;
  for (int r = 0; r < rows; r++, sums += ld_sums, to += ld_to) {
    f32x16 v = load_as_f32<T>(sums);
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
      scatter_add(to, columns, group, v);
    } else {
      scatter_as<TO>(to, columns, group, v);
    }
  }
}

template <class T, int EPILOGUE, int TO>
static void linear(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  alignas(64) float sums[kMaxRows * kMaxNr * kLanes];
  const int width = kLanes * s.nr, mr = microkernel_rows(s.nr);
  const int k = (s.inputs + T::kPerStep - 1) / T::kPerStep, steps = (k + kStepMultiple - 1) / kStepMultiple * kStepMultiple;
  const long panel_bytes = steps * width * 4L;
  const int32_t *overflow_starts = (const int32_t*)(base + s.overflow),
                *overflow_steps = overflow_starts + s.blocks * s.outputs / width + 1;
  const auto run_epilogue = [&](int output, int r) {
    const int count = rows - r < mr ? rows - r : mr;
    for (int j = 0; j < width; j += kLanes)
      epilogue<T, EPILOGUE, TO>(s, base, output + j, sums + j, width, count, to + r * ld_to, ld_to);
  };
#if defined(__AMX_INT8__)
  int last = -1, last_row = 0;  // the product in the tiles
  // Some rows take all panels of a block before the next rows do, where the L2 cache holds those panels.
  const int row_block = panel_bytes * s.outputs / width <= kL2PanelBytes ? mr : rows;
#else
  const int row_block = rows;
#endif
  for (int block = 0; block < s.blocks; block++) {
    const char* inputs = from + (long)block * s.inputs * sizeof(typename T::Element);
    for (int begin = 0; begin < rows; begin += row_block) {
      const int end = rows - begin < row_block ? rows : begin + row_block;
      for (int output = 0; output < s.outputs; output += width) {
        const int first = block * s.outputs + output, number = first / width;
        const char* panel = base + s.weights + number * panel_bytes;
        const int32_t* start = overflow_starts + number;
        Overflow overflow;
        if (s.overflow)
          overflow = {base + s.overflow_weights + start[0] * 4L * width, overflow_steps + start[0], start[1] - start[0]};
        for (int r = begin; r < end; r += mr) {
#if defined(__AMX_INT8__)
          // A product starts before the previous one's epilogue, so that they overlap.
          if (last >= 0) tile_store(sums, width, rows - last_row);
          tile_gemm<T>(inputs + r * ld_from, ld_from, panel, steps, rows - r);
          if (last >= 0) run_epilogue(last, last_row);
          last = first, last_row = r;
#else
          gemm<T>(s.nr, inputs + r * ld_from, ld_from, panel, steps, overflow, sums, width, s.nr);
          run_epilogue(first, r);
#endif
        }
      }
    }
  }
#if defined(__AMX_INT8__)
  tile_store(sums, width, rows - last_row);
  run_epilogue(last, last_row);
#endif
}

template <class T>
static void linear(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  if (s.epilogue == kAdd) return linear<T, kAdd, kF32>(s, base, from, ld_from, to, ld_to, rows);
  if (s.epilogue == kSiluAdd) return linear<T, kSiluAdd, kF32>(s, base, from, ld_from, to, ld_to, rows);
  if (s.epilogue == kGelu) {
    if (s.to_type == kU8) return linear<T, kGelu, kU8>(s, base, from, ld_from, to, ld_to, rows);
    if (s.to_type == kBF16) return linear<T, kGelu, kBF16>(s, base, from, ld_from, to, ld_to, rows);
    return linear<T, kGelu, kF32>(s, base, from, ld_from, to, ld_to, rows);
  }
  if (s.epilogue == kSilu) {
    if (s.to_type == kU8) return linear<T, kSilu, kU8>(s, base, from, ld_from, to, ld_to, rows);
    if (s.to_type == kBF16) return linear<T, kSilu, kBF16>(s, base, from, ld_from, to, ld_to, rows);
    return linear<T, kSilu, kF32>(s, base, from, ld_from, to, ld_to, rows);
  }
  if (s.to_type == kU8) return linear<T, kStore, kU8>(s, base, from, ld_from, to, ld_to, rows);
  if (s.to_type == kBF16) return linear<T, kStore, kBF16>(s, base, from, ld_from, to, ld_to, rows);
  return linear<T, kStore, kF32>(s, base, from, ld_from, to, ld_to, rows);
}

constexpr int kNormRows = 4;  // rows at a time, whose sums do not depend on each other

// A norm of one block of columns; two passes: the mean, then the variance about it.
template <int TO>
static void norm(const Stage& s, const float* weight, const float* bias, const int32_t* columns, const char* from, long ld_from,
                 char* to, long ld_to, int rows) {
  const int n = s.inputs, groups = kLanes / s.group;
  // Columns behind the first `outputs` count as zeros.
  const auto kept = [&](f32x16 v, int c) {
    if (c + kLanes <= s.outputs) return v;
    float lanes[kLanes];
    store(lanes, v);
    for (int i = s.outputs > c ? s.outputs - c : 0; i < kLanes; i++) lanes[i] = 0;
    return load<f32x16>(lanes);
  };
  for (int r = 0; r < rows; r += kNormRows) {
    const int count = rows - r < kNormRows ? rows - r : kNormRows;
    const float* x[kNormRows];
    f32x16 mean[kNormRows] = {}, rstd[kNormRows] = {};
    for (int i = 0; i < kNormRows; i++) x[i] = (const float*)(from + (r + (i < count ? i : 0)) * ld_from);
    if (s.centred) {
      for (int c = 0; c < n; c += kLanes)
#pragma GCC unroll 4
        for (int i = 0; i < kNormRows; i++) mean[i] += kept(load<f32x16>(x[i] + c), c);
#pragma GCC unroll 4
      for (int i = 0; i < kNormRows; i++) mean[i] = set1(reduce_add(mean[i]) / s.outputs);
    }
    for (int c = 0; c < n; c += kLanes)
#pragma GCC unroll 4
      for (int i = 0; i < kNormRows; i++) {
        const f32x16 d = kept(load<f32x16>(x[i] + c) - mean[i], c);
        rstd[i] = fma(d, d, rstd[i]);
      }
#pragma GCC unroll 4
    for (int i = 0; i < kNormRows; i++) rstd[i] = set1(1 / __builtin_sqrtf(reduce_add(rstd[i]) / s.outputs + s.eps));
    for (int c = 0, g = 0; c < n; c += kLanes, g += groups) {
      const f32x16 a = load<f32x16>(weight + c), b = load<f32x16>(bias + c);
#pragma GCC unroll 4
      for (int i = 0; i < kNormRows; i++) {
        if (i >= count) break;
        const f32x16 v = fma((load<f32x16>(x[i] + c) - mean[i]) * rstd[i], a, b);
        if (TO == kF32 && s.epilogue == kAdd) scatter_add(to + (r + i) * ld_to, columns + g, s.group, v);
        else scatter_as<TO>(to + (r + i) * ld_to, columns + g, s.group, v);
      }
    }
  }
}

// A norm of `blocks` times `inputs` columns, a multiple of 16.
template <int TO>
static void norm(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  const int32_t* columns = (const int32_t*)(base + s.out_columns);
  for (int first = 0; first < s.blocks * s.inputs; first += s.inputs)
    norm<TO>(s, (const float*)(base + s.scale) + first, (const float*)(base + s.bias) + first, columns + first / s.group,
             from + 4 * first, ld_from, to, ld_to, rows);
}

}  // namespace ISA
}  // namespace milkweed
