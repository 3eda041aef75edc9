// Linear attention with positive random features (Performer, arXiv 2009.14794), in float32: the exponentials span more
// than bfloat16 sums can hold.
#pragma once

#include "grouped.h"

namespace milkweed {
namespace ISA {

// Rows of the register tile, and of a block of tokens whose features are stored.
constexpr int kTileRows = kNativeLanes == 16 ? 8 : 4, kBlockTokens = 32;

// 2^x; relative error 3e-7. Saturates at 2^127; below 2^-126 it is 0.
static inline f32x16 exp2(f32x16 x) {
  x = min(max(x, set1(-150)), set1(127));
  const i32x16 n = round_to_i32(x);
  const f32x16 f = x - to_f32(n);
  f32x16 p = fma(set1(0.000154035304f), f, set1(0.00133335581f));
  p = fma(p, f, set1(0.00961812911f));
  p = fma(p, f, set1(0.0555041087f));
  p = fma(p, f, set1(0.240226507f));
  p = fma(p, f, set1(0.693147181f));
  p = fma(p, f, set1(1));
  return (f32x16)(((i32x16)p + (n << 23)) & (n > -126));
}

// Inputs and running sums for one image: rows of keys, queries and values, `width` float32 each.
struct PerformerState {
  const char* kqv;
  long ld;
  int n, width, features;          // features padded to whole vectors
  const float *w, *feature_scale;  // (width, features), times log2(e); (features,), 0 for padding
  float *kv, *k_sum;               // (features, width) and (features,): sums over tokens of phi(k) v and of phi(k)
  long sums() const { return (long)features * (width + 1); }  // numbers in both, one behind the other
};

// c (kTileRows, columns) = or += a (kTileRows, k), of strides `row` and `step`, by b (k, columns); columns are whole
// vectors.
template <bool ACCUMULATE>
static inline void gemm_f32(const float* a, long row, long step, const float* b, long ld_b, int k, int columns, float* c,
                            long ld_c) {
  constexpr int parts = kLanes / kNativeLanes;
  for (int column = 0; column < columns; column += kLanes) {
    native_f32 sum[kTileRows][parts];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; r++)
#pragma GCC unroll 4
      for (int j = 0; j < parts; j++)
        sum[r][j] = ACCUMULATE ? load<native_f32>(c + r * ld_c + column + j * kNativeLanes) : native_f32{};
    for (int i = 0; i < k; i++) {
      native_f32 v[parts];
#pragma GCC unroll 4
      for (int j = 0; j < parts; j++) v[j] = load<native_f32>(b + i * ld_b + column + j * kNativeLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; r++) {
        const native_f32 x = broadcast(a + r * row + i * step);
#pragma GCC unroll 4
        for (int j = 0; j < parts; j++) sum[r][j] = fma(x, v[j], sum[r][j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; r++)
#pragma GCC unroll 4
      for (int j = 0; j < parts; j++) store(c + r * ld_c + column + j * kNativeLanes, sum[r][j]);
  }
}

// Random features (rows, features) of tokens from `first` on, whose vectors begin at `column`. Rounded up to kTileRows.
static inline void random_features(const PerformerState& p, int first, int rows, int column, float* out) {
  for (int r = 0; r < rows; r += kTileRows) {
    const float* t = (const float*)(p.kqv + (first + r) * p.ld) + column;
    float* to = out + (long)r * p.features;
    gemm_f32<false>(t, p.ld / 4, 1, p.w, p.features, p.width, p.features, to, p.features);
    for (int i = 0; i < kTileRows; i++, t += p.ld / 4, to += p.features) {
      f32x16 squares{};
      for (int c = 0; c < p.width; c += kLanes) squares = fma(load<f32x16>(t + c), load<f32x16>(t + c), squares);
      const f32x16 half = set1(-0.72134752f * reduce_add(squares));  // log2(e) / 2
      for (int f = 0; f < p.features; f += kLanes)
        store(to + f, exp2(load<f32x16>(to + f) + half) * load<f32x16>(p.feature_scale + f));
    }
  }
}

// kv and k_sum over tokens from `begin` to `end`.
static void accumulate_kv(const PerformerState& p, int begin, int end, float* phi) {
  memset(p.kv, 0, 4 * p.sums());
  for (int first = begin; first < end; first += kBlockTokens) {
    const int count = end - first < kBlockTokens ? end - first : kBlockTokens;
    random_features(p, first, count, 0, phi);
    const float* v = (const float*)(p.kqv + first * p.ld) + 2 * p.width;
    for (int i = 0; i < count; i++)
      for (int f = 0; f < p.features; f += kLanes)
        store(p.k_sum + f, load<f32x16>(p.k_sum + f) + load<f32x16>(phi + (long)i * p.features + f));
    for (int f = 0; f < p.features; f += kTileRows)
      gemm_f32<true>(phi + f, 1, p.features, v, p.ld / 4, count, p.width, p.kv + (long)f * p.width, p.width);
  }
}

// Outputs of queries from `begin` to `end`; their values become the stream. `phi` has room for a block of outputs behind the features.
template <int TO>
static void attend_queries(const PerformerState& p, const Step& s, int begin, int end, const char* base, char* stream,
                           long ld, char* to, long ld_to, float* phi) {
  const float *scale = (const float*)(base + s.scale), *bias = (const float*)(base + s.bias);
  const int32_t* columns = (const int32_t*)(base + s.out_columns);
  float* y = phi + (long)kBlockTokens * p.features;
  for (int first = begin; first < end; first += kBlockTokens) {
    const int count = end - first < kBlockTokens ? end - first : kBlockTokens;
    random_features(p, first, count, p.width, phi);
    for (int r = 0; r < count; r += kTileRows)
      gemm_f32<false>(phi + (long)r * p.features, p.features, 1, p.kv, p.width, p.features, p.width,
                      y + (long)r * p.width, p.width);
    for (int i = 0; i < count; i++) {
      f32x16 products{};
      for (int f = 0; f < p.features; f += kLanes)
        products = fma(load<f32x16>(phi + (long)i * p.features + f), load<f32x16>(p.k_sum + f), products);
      const f32x16 inverse_sum = set1(1 / (reduce_add(products) + s.epsilon));
      memcpy(stream + (first + i) * ld, p.kqv + (first + i) * p.ld + 8L * p.width, 4L * p.width);
      for (int c = 0; c < p.width; c += kLanes) {
        const f32x16 v = load<f32x16>(y + (long)i * p.width + c) * inverse_sum;
        scatter_as<TO>(to + (first + i) * ld_to, columns + c / s.group, s.group,
                       fma(v, load<f32x16>(scale + c), load<f32x16>(bias + c)));
      }
    }
  }
}

constexpr int kSlices = 8;  // of the tokens: sums of each are added in order, so that they are the same by any number of threads

// From buffer 0, rows of keys, queries and values in float32: values to buffer 1, outputs to buffer 2. The arena's scratch has
// the sums of the slices, a member's their total, then features and outputs of a block.
static void run_performer(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  const Buffer* b = p.buffers + s.first_buffer;
  PerformerState state;
  state.ld = b[0].row_bytes;
  state.n = s.rows;
  state.width = s.width;
  state.features = s.features;
  state.w = (const float*)(base + s.start);
  state.feature_scale = state.w + (long)s.width * s.features;
  const auto at = [&](int place) { return arena + b[place].offset; };
  state.kqv = at(0);
  const auto place_sums = [&](float* to) {
    state.kv = to;
    state.k_sum = to + (long)s.features * s.width;
  };
  float *slices = (float*)(arena + s.scratch), *total = (float*)(member.memory + s.scratch) + kSlices * state.sums();
  float* phi = total + state.sums();
  const int slice = round_up((s.rows + kSlices - 1) / kSlices, kBlockTokens), count = (s.rows + slice - 1) / slice;
  const Member::Share slices_of_mine = member.share(count);
  for (int i = slices_of_mine.first; i < slices_of_mine.last; i++) {
    place_sums(slices + i * state.sums());
    accumulate_kv(state, i * slice, s.rows - i * slice < slice ? s.rows : (i + 1) * slice, phi);
  }
  member.wait();
  memcpy(total, slices, 4 * state.sums());
  for (int i = 1; i < count; i++)
    for (long j = 0; j < state.sums(); j += kLanes)
      store(total + j, load<f32x16>(total + j) + load<f32x16>(slices + i * state.sums() + j));
  place_sums(total);
  const Member::Share mine = member.share(s.rows, kBlockTokens);
  const auto attend = s.to_type == kU8 ? attend_queries<kU8> : attend_queries<kBF16>;
  attend(state, s, mine.first, mine.last, base, at(1), b[1].row_bytes, at(2), b[2].row_bytes, phi);
}

}  // namespace ISA
}  // namespace milkweed
