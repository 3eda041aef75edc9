// Linear attention with positive random features (Performer, arXiv 2009.14794), in float32: its exponentials span more
// than bfloat16 can add up.
#pragma once

#include "grouped.h"

namespace milkweed {
namespace ISA {

// Rows in registers, as many as there is room for sums that do not wait for each other, and those whose features are kept.
constexpr int kTokens = kNative == 16 ? 8 : 4, kBlock = 32;

// 2^x for any x; relative error 3e-7. Below 2^-126 it is 0; more than 2^127 is 2^127.
static inline f32x16 exp2_of(f32x16 x) {
  x = smaller(larger(x, all(-150)), all(127));
  const i32x16 n = rounded(x);
  const f32x16 f = x - to_f32(n);
  f32x16 p = fma(all(0.000154035304f), f, all(0.00133335581f));
  p = fma(p, f, all(0.00961812911f));
  p = fma(p, f, all(0.0555041087f));
  p = fma(p, f, all(0.240226507f));
  p = fma(p, f, all(0.693147181f));
  p = fma(p, f, all(1));
  return (f32x16)(((i32x16)p + (n << 23)) & (n > -126));
}

// What an image's performer reads and keeps: rows of keys, queries and values, `width` float32 each.
struct Performing {
  const char* kqv;
  long ld;
  int n, width, features;  // features in whole vectors
  const float *w, *gain;   // (width, features), times log2(e); what features are multiplied by, 0 where they fill up
  float *summary, *total;  // (features, width) and (features): sums over keys
};

// c (kTokens, columns) = or += a (kTokens, k), whose rows and columns are so far apart, by b (k, columns); columns fill
// whole vectors.
template <bool ADDS>
static inline void multiply_floats(const float* a, long row, long step, const float* b, long ld_b, int k, int columns, float* c, long ld_c) {
  constexpr int parts = kLanes / kNative;
  for (int column = 0; column < columns; column += kLanes) {
    native sum[kTokens][parts];
#pragma GCC unroll 8
    for (int r = 0; r < kTokens; r++)
#pragma GCC unroll 4
      for (int j = 0; j < parts; j++) sum[r][j] = ADDS ? load<native>(c + r * ld_c + column + j * kNative) : native{};
    for (int i = 0; i < k; i++) {
      native v[parts];
#pragma GCC unroll 4
      for (int j = 0; j < parts; j++) v[j] = load<native>(b + i * ld_b + column + j * kNative);
#pragma GCC unroll 8
      for (int r = 0; r < kTokens; r++) {
        const native x = spread(a + r * row + i * step);
#pragma GCC unroll 4
        for (int j = 0; j < parts; j++) sum[r][j] = fused(x, v[j], sum[r][j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTokens; r++)
#pragma GCC unroll 4
      for (int j = 0; j < parts; j++) store(c + r * ld_c + column + j * kNative, sum[r][j]);
  }
}

// The features of so many rows from a column on, (rows, features); more rows behind them are read and written.
static inline void features_of(const Performing& p, int first, int rows, int column, float* out) {
  for (int r = 0; r < rows; r += kTokens) {
    const float* t = (const float*)(p.kqv + (first + r) * p.ld) + column;
    float* to = out + (long)r * p.features;
    multiply_floats<false>(t, p.ld / 4, 1, p.w, p.features, p.width, p.features, to, p.features);
    for (int i = 0; i < kTokens; i++, t += p.ld / 4, to += p.features) {
      f32x16 squares{};
      for (int c = 0; c < p.width; c += kLanes) squares = fma(load<f32x16>(t + c), load<f32x16>(t + c), squares);
      const f32x16 half = all(-0.72134752f * sum(squares));  // log2(e) / 2
      for (int f = 0; f < p.features; f += kLanes)
        store(to + f, exp2_of(load<f32x16>(to + f) + half) * load<f32x16>(p.gain + f));
    }
  }
}

// Sums of keys' features, and of their products with values, over all tokens.
static void sum_keys(const Performing& p, float* phi) {
  memset(p.summary, 0, 4L * p.features * p.width);
  memset(p.total, 0, 4L * p.features);
  for (int first = 0; first < p.n; first += kBlock) {
    const int here = p.n - first < kBlock ? p.n - first : kBlock;
    features_of(p, first, here, 0, phi);
    const float* v = (const float*)(p.kqv + first * p.ld) + 2 * p.width;
    for (int i = 0; i < here; i++)
      for (int f = 0; f < p.features; f += kLanes)
        store(p.total + f, load<f32x16>(p.total + f) + load<f32x16>(phi + (long)i * p.features + f));
    for (int f = 0; f < p.features; f += kTokens)
      multiply_floats<true>(phi + f, 1, p.features, v, p.ld / 4, here, p.width, p.summary + (long)f * p.width, p.width);
  }
}

// The answers of all queries; the values become the stream. `phi` has room for as many answers behind the features.
template <int TO>
static void answer(const Performing& p, const Step& s, const char* base, char* stream, long ld, char* to, long ld_to, float* phi) {
  const float *scale = (const float*)(base + s.scale), *bias = (const float*)(base + s.bias);
  const int32_t* places = (const int32_t*)(base + s.places);
  float* y = phi + (long)kBlock * p.features;
  for (int first = 0; first < p.n; first += kBlock) {
    const int here = p.n - first < kBlock ? p.n - first : kBlock;
    features_of(p, first, here, p.width, phi);
    for (int r = 0; r < here; r += kTokens)
      multiply_floats<false>(phi + (long)r * p.features, p.features, 1, p.summary, p.width, p.features, p.width,
                             y + (long)r * p.width, p.width);
    for (int i = 0; i < here; i++) {
      f32x16 products{};
      for (int f = 0; f < p.features; f += kLanes)
        products = fma(load<f32x16>(phi + (long)i * p.features + f), load<f32x16>(p.total + f), products);
      const f32x16 rate = all(1 / (sum(products) + s.epsilon));
      memcpy(stream + (first + i) * ld, p.kqv + (first + i) * p.ld + 8L * p.width, 4L * p.width);
      for (int c = 0; c < p.width; c += kLanes) {
        const f32x16 v = load<f32x16>(y + (long)i * p.width + c) * rate;
        put<TO>(to + (first + i) * ld_to, places + c / s.group, s.group,
                fma(v, load<f32x16>(scale + c), load<f32x16>(bias + c)));
      }
    }
  }
}

// From buffer 0, rows of keys, queries and values in float32: values to buffer 1, answers to buffer 2.
static void run_performer(const Program& p, const Step& s, const char* base, char* arena) {
  const Buffer* b = p.buffers + s.first_buffer;
  Performing one;
  one.ld = b[0].row_bytes;
  one.n = s.rows;
  one.width = s.width;
  one.features = s.features;
  one.w = (const float*)(base + s.start);
  one.gain = one.w + (long)s.width * s.features;
  one.summary = (float*)(arena + s.scratch);
  one.total = one.summary + (long)s.features * s.width;
  float* phi = one.total + s.features;
  const auto at = [&](int place) { return arena + b[place].offset; };
  one.kqv = at(0);
  sum_keys(one, phi);
  if (s.to_type == kU8) answer<kU8>(one, s, base, at(1), b[1].row_bytes, at(2), b[2].row_bytes, phi);
  else answer<kBF16>(one, s, base, at(1), b[1].row_bytes, at(2), b[2].row_bytes, phi);
}

}  // namespace ISA
}  // namespace milkweed
