// The end of the fused Monarch MLP: turns accumulators, block by block, into 16-byte runs of y with bias and residual.
//
// Output 4 u + j is column u of block j. A unit is 16 rows x 8 columns of every block; the accumulators of one lane hold
// columns 2t and 2t + 1 of two rows of each: for each row a run of 8 adjacent outputs.
#pragma once

#include "mlp/monarch_mlp_tiles.cuh"

namespace mw {

template <class C>
struct MlpOutput {
  using T = typename C::T;
  static constexpr int NB = kMlpBlocks, runs = 2;
  using Sums = float[NB][4];
  using Residual = uint32_t[runs][4];

  const MonarchMlpArgs& args;
  int first_row;  // of the m16 tile

  MW_DEVICE int row(int run) const { return first_row + lane() / 4 + 8 * run; }
  MW_DEVICE static int column(int unit) { return (unit * 8 + lane() % 4 * 2) * NB; }
  MW_DEVICE int64_t offset(int unit, int run) const {
    return static_cast<int64_t>(row(run)) * args.width + column(unit);
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

  MW_DEVICE void store(const Sums& c, int unit, const Residual& residual) const {
    MW_UNROLL
    for (int run = 0; run < runs; run++) {
      const auto* bias = reinterpret_cast<const Float4*>(args.bias2 + column(unit));
      const Float4 bias_of[2] = {bias[0], bias[1]};
      uint32_t packed[4];
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        float low, high;
        unpack2<T>(residual[run][i], low, high);
        const int j = i % 2 * 2, of_tile = run * 2 + i / 2;
        const float* two = &bias_of[i / 2].v[j];
        packed[i] = pack2<T>(c[j][of_tile] + two[0] + low, c[j + 1][of_tile] + two[1] + high);
      }
      if (row(run) < args.rows) store_16(static_cast<T*>(args.y) + offset(unit, run), packed);
    }
  }
};

}  // namespace mw
