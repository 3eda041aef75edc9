// Finishes the sums of the Monarch linear kernel: bias, activation and residual, then 16 bytes at a time to memory.
#pragma once
#include "linear/linear_chunks.cuh"

namespace mw {
namespace linear {

// Adds the bias to the sums. `column`: that of the warp's first unit; `columns`: rows of w2 that exist.
template <class C>
MW_DEVICE void add_bias(float (&sum)[C::nblocks][2][2 * C::units2][4], const float* bias, int column, int columns) {
  MW_UNROLL
  for (int tile = 0; tile < 2 * C::units2; tile++) {
    const int s = column + tile * 8 + 2 * (lane() % 4);
    uint32_t word[C::nblocks / 2][4] = {};  // outputs s*nblocks and on: of row s for all blocks, then of row s + 1
    if (s < columns) {
      MW_UNROLL
      for (int i = 0; i < C::nblocks / 2; i++) load_16(word[i], bias + s * C::nblocks + i * 4);
    }
    MW_UNROLL
    for (int i = 0; i < 2 * C::nblocks; i++) {
      MW_UNROLL
      for (int quarter = 0; quarter < 4; quarter++)
        sum[i % C::nblocks][quarter / 2][tile][2 * (quarter % 2) + i / C::nblocks] +=
            __builtin_bit_cast(float, word[i / 4][i % 4]);
    }
  }
}

template <class C>
MW_DEVICE void activate_run(float (&value)[C::run], Activation activation) {
  if (activation != Activation::gelu) return;
  MW_UNROLL
  for (int i = 0; i < C::run; i++) value[i] = gelu<typename C::T>(value[i]);
}

// A lane's run of adjacent outputs in one row: 2*nblocks of one mma tile, or, for 2 blocks, half of what two lanes
// hold of two tiles, so that a run is never less than 16 bytes. `quarter`: which of the lane's four rows.
template <class C>
MW_DEVICE void gather_run(float (&value)[C::run], const float (&sum)[C::nblocks][2][2 * C::units2][4], int index,
                          int quarter) {
  const int half = quarter / 2, first = 2 * (quarter % 2);
  MW_UNROLL
  for (int i = 0; i < 2 * C::nblocks; i++) {
    const auto& tiles = sum[i % C::nblocks][half];
    const int at = first + i / C::nblocks;
    if constexpr (C::nblocks > 2) {
      value[i] = tiles[index][at];
    } else {
      const bool odd = lane() % 2 != 0;
      const float kept = odd ? tiles[2 * index + 1][at] : tiles[2 * index][at];
      const float received = shuffle_xor(odd ? tiles[2 * index][at] : tiles[2 * index + 1][at], 1);
      value[i] = odd ? received : kept;
      value[4 + i] = odd ? kept : received;
    }
  }
}

// The row of w2 at which a lane's first run begins, counted from the warp's first row, and the step to the next run.
template <class C>
MW_DEVICE int first_run() {
  if constexpr (C::nblocks > 2) return 2 * (lane() % 4);
  return (lane() % 2) * 8 + (lane() % 4) / 2 * 4;
}
template <class C>
constexpr int run_step = C::nblocks > 2 ? 8 : 16;

template <class C>
using Residual = uint32_t[C::run / 8][4];  // of one run

template <class C>
MW_DEVICE void load_residual(Residual<C>& residual, const typename C::T* from) {
  MW_UNROLL
  for (int i = 0; i < C::run / 8; i++) load_16(residual[i], from + i * 8);
}

template <class C>
MW_DEVICE void add_residual(float (&value)[C::run], const Residual<C>& residual) {
  MW_UNROLL
  for (int i = 0; i < C::run; i += 2) {
    float low, high;
    unpack2<typename C::T>(residual[i / 8][i % 8 / 2], low, high);
    value[i] += low;
    value[i + 1] += high;
  }
}

template <class C>
MW_DEVICE void store_run(typename C::T* to, const float (&value)[C::run]) {
  MW_UNROLL
  for (int i = 0; i < C::run; i += 8) {
    uint32_t word[4];
    MW_UNROLL
    for (int pair = 0; pair < 4; pair++)
      word[pair] = pack2<typename C::T>(value[i + pair * 2], value[i + pair * 2 + 1]);
    store_16(to + i, word);
  }
}

// Writes the outputs of a warp's `units` units of rows of w2 from `column` on. `row`: the first of the lane's four rows
// of x, which are 8 apart; `rows`: how many exist from it on. A row's residual for the next run is loaded while the
// other rows of this run are finished.
template <class C>
MW_DEVICE void store_outputs(const Problem& args, float (&sum)[C::nblocks][2][2 * C::units2][4], int64_t row,
                             int rows, int column, int units) {
  using T = typename C::T;
  const int first = column + first_run<C>(), runs = units * kUnit / run_step<C>;
  const int64_t row_step = 8 * C::nblocks * static_cast<int64_t>(args.s);
  const int64_t offset = (row * args.s + first) * C::nblocks;
  const bool add = args.residual != nullptr;
  const T* from = static_cast<const T*>(add ? args.residual : args.y) + offset;
  T* to = static_cast<T*>(args.y) + offset;
  Residual<C> residual[4] = {};
  MW_UNROLL
  for (int quarter = 0; quarter < 4; quarter++) {
    if (add && runs > 0 && first < args.s && quarter * 8 < rows)
      load_residual<C>(residual[quarter], from + quarter * row_step);
  }
  if (args.bias != nullptr) add_bias<C>(sum, args.bias, column, args.s);
  MW_UNROLL
  for (int run = 0; run < C::units2 * kUnit / run_step<C>; run++) {
    if (run >= runs) continue;
    const int s = first + run * run_step<C>;
    from += run_step<C> * C::nblocks;
    MW_UNROLL
    for (int quarter = 0; quarter < 4; quarter++) {
      const bool exists = s < args.s && quarter * 8 < rows;
      float value[C::run];
      gather_run<C>(value, sum, run, quarter);
      activate_run<C>(value, args.activation);
      if (add) add_residual<C>(value, residual[quarter]);
      if (exists) store_run<C>(to + quarter * row_step, value);
      if (add && run + 1 < runs && s + run_step<C> < args.s && quarter * 8 < rows)
        load_residual<C>(residual[quarter], from + quarter * row_step);
    }
    to += run_step<C> * C::nblocks;
  }
}

}  // namespace linear
}  // namespace mw
