// The end of the fused Monarch MLP: turns accumulators, block by block, into 16-byte runs of y with bias and residual.
//
// Output u * NB + j is column u of block j. A unit is 16 rows x 8 columns of every block; the accumulators of one lane
// hold columns 2t and 2t + 1 of two rows of each, which are NB/2 runs of 8 adjacent outputs once NB = 2 has traded
// halves with the neighbouring lane.
#pragma once

#include "mlp/monarch_mlp_tiles.cuh"

namespace mw {

template <class C>
struct MlpOutput {
  using T = typename C::T;
  static constexpr int NB = C::nblocks, runs = NB / 2;
  using Sums = float[NB][4];
  using Residual = uint32_t[runs][4];

  const MonarchMlpArgs& args;
  int first_row;  // of the m16 tile

  MW_DEVICE int row(int run) const {
    const int lower_half = NB == 2 ? lane() % 2 : NB == 4 ? run : run / 2;
    return first_row + lane() / 4 + 8 * lower_half;
  }
  MW_DEVICE static int column(int unit, int run) {
    const int in_unit = NB == 2 ? lane() % 4 / 2 * 4 : lane() % 4 * 2 + (NB == 8 ? run % 2 : 0);
    return (unit * 8 + in_unit) * NB;
  }
  MW_DEVICE int64_t offset(int unit, int run) const {
    return static_cast<int64_t>(row(run)) * args.width + column(unit, run);
  }

  MW_DEVICE void load_residual(Residual& value, int unit) const {
    MW_UNROLL
    for (int run = 0; run < runs; run++) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) value[run][i] = 0;
      if (args.residual != nullptr && row(run) < args.rows)
        load_16(value[run], static_cast<const T*>(args.residual) + offset(unit, run));
    }
  }

  // Takes the 8 values of a run from the accumulator tiles c[j].
  MW_DEVICE static void gather(float (&values)[8], const Sums& c, int run) {
    MW_UNROLL
    for (int i = 0; i < 8; i++) {
      if constexpr (NB == 2) {
        // The even lane keeps its upper row and takes the other's upper row; the odd lane does so with the row 8 below.
        const bool odd = lane() % 2 != 0;
        const float upper = c[i % 2][i / 2 % 2], lower = c[i % 2][2 + i / 2 % 2];
        const float theirs = shuffle_xor(odd ? upper : lower, 1);
        values[i] = (i < 4) == odd ? theirs : (odd ? lower : upper);
      } else {
        values[i] = NB == 4 ? c[i % 4][run * 2 + i / 4] : c[i % NB][run];
      }
    }
  }

  MW_DEVICE void store(const Sums& c, int unit, const Residual& residual) const {
    MW_UNROLL
    for (int run = 0; run < runs; run++) {
      float values[8];
      gather(values, c, run);
      const auto* bias = reinterpret_cast<const Float4*>(args.bias2 + column(unit, run));
      const Float4 bias_of[2] = {bias[0], bias[1]};
      uint32_t packed[4];
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        float low, high;
        unpack2<T>(residual[run][i], low, high);
        const float* two = &bias_of[i / 2].v[i % 2 * 2];
        packed[i] = pack2<T>(values[2 * i] + two[0] + low, values[2 * i + 1] + two[1] + high);
      }
      if (row(run) < args.rows) store_16(static_cast<T*>(args.y) + offset(unit, run), packed);
    }
  }
};

}  // namespace mw
