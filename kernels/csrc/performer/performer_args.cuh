// Arguments, packed layout and exact splits of numbers that both launches of the performer attention use.
#pragma once
#include "primitives.cuh"

// A loop whose body is long enough that repeating it in the code buys nothing.
#define MW_NO_UNROLL _Pragma("unroll 1")

namespace mw {

struct PerformerArgs {
  const void* kqv;       // (images, tokens, 3 * dim): keys, queries, values; 16-byte aligned
  const void* weights;   // performer_weights numbers as kernels/performer.py packs them; 16-byte aligned
  const float* biases;   // (3, dim) with the MLP, (1, dim) without: of the projection, of the MLP's two layers
  const void* parallel;  // (images, tokens, dim), added after the projection; nullptr for none
  float* partial;        // workspace of performer_workspace floats, 16-byte aligned; every one is written
  void* out;             // (images, tokens, dim), 16-byte aligned
  int images, tokens, dim;
  int splits;           // blocks that share an image's keys: performer_splits
  bool mlp;             // x + fc2(gelu(fc1(norm(x)))) at the end
  float eps;            // added to the denominator
  float norm_eps;       // of the MLP's LayerNorm
  int multiprocessors;  // of the device
  int shared_limit;     // bytes of shared memory that a block may have
};

namespace performer {

// The random features' matrix is a sum of this many terms of T: 24 bits of each element in bf16, 22 in fp16.
template <class T>
constexpr int kTerms = 3;
template <>
constexpr int kTerms<fp16> = 2;

template <class T>
constexpr bool kIsBf16 = false;
template <>
constexpr bool kIsBf16<bf16> = true;

// Weights come in units of 16 rows by 16 columns, in the order in which the lanes of a warp hold such a tile: a lane's
// four words are the right operands of two mma, of rows 0..7 and of rows 8..15. With the middle two exchanged they are
// the left operand of one.
constexpr int kUnit = 256;

// log2(features) / 2, the exponent of 1 / sqrt(features).
constexpr float half_log2(int features) {
  return features == 16 ? 2.0f : features == 32 ? 2.5f : features == 48 ? 2.7924812503605783f : 3.2924812503605783f;
}

// The packed weights, in units: the features' matrix by 16 features, the projection by 32 columns of its result, then
// the MLP by 16 hidden columns: rows of fc1, columns of fc2.
template <class T, int Dim>
struct Packed {
  static constexpr int steps = Dim / 16;                    // of an mma across a row
  static constexpr int feature_tiles = Dim / 32;            // 16 of the Dim / 2 features each
  static constexpr int feature_piece = kTerms<T> * steps;   // units of one feature tile
  static constexpr int dense_piece = 2 * steps;             // units of 32 rows of a square matrix, or 16 of two
  static constexpr int dense_pieces = Dim / 32, mlp_pieces = Dim / 16;
  static constexpr int projection = feature_tiles * feature_piece;
  static constexpr int pieces_without_mlp = feature_tiles + dense_pieces;
  static constexpr float half_log2_features = half_log2(Dim / 2);
};

MW_DEVICE void swap_middle(uint32_t (&word)[4]) {
  const uint32_t second = word[1];
  word[1] = word[2];
  word[2] = second;
}

// Splits two floats into bf16 hi and lo parts, together 16 bits of each. Features reach e^48, hence bf16's range.
MW_DEVICE void split(float low, float high, uint32_t& hi, uint32_t& lo) {
  hi = pack2<bf16>(low, high);
  float hi_low, hi_high;
  unpack2<bf16>(hi, hi_low, hi_high);
  lo = pack2<bf16>(low - hi_low, high - hi_high);
}

// phi(t) = exp2(w' t - offset(|t|^2)), where w' = w log2(e): offset = |t|^2 log2(e) / 2 + log2(features) / 2.
MW_DEVICE float feature_offset(float square, float half_log2_features) {
  return fmaf(square, 0.5f * kLog2E, half_log2_features);
}

// Adds the squares of a packed pair to a sum.
template <class T>
MW_DEVICE float add_squares(float sum, uint32_t pair) {
  float low, high;
  unpack2<T>(pair, low, high);
  return fmaf(high, high, fmaf(low, low, sum));
}

// Returns 0 for a count that is not negative, which the compiler does not know. So it neither repeats what is computed
// with this where it is used nor keeps it in registers until the same is needed again.
MW_DEVICE int opaque_zero(int count) { return count >> 31; }

// Returns, in all of them, the sum over the four lanes that share a row of an mma's result.
MW_DEVICE float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

}  // namespace performer
}  // namespace mw
