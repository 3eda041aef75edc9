// A whole Monarch MLP in one launch: y = residual + fc2(gelu(fc1(norm(x)))), hidden activations in registers only.
//
// A layer is two block-diagonal factors with a permutation between them (kernels/reference.py); kernels/blocked_mlp.py
// folds the permutations into the weights' layout. There are NB = 4 blocks of `width / NB` features, padded with zeros
// to Q. A block of threads owns some rows of x and walks once along all weights, in three phases:
//   1. first factor of fc1: x -> t, stored permuted, in the blocks that read it;
//   2. for each input block of fc2, 16 hidden columns at a time: second factor of fc1, bias, GELU; the result is at
//      once the left operand of the first factor of fc2, whose sum u stays in registers until its block is done;
//   3. second factor of fc2, bias, residual -> y.
// x, and u after it, are in one buffer of shared memory, t in another.
#pragma once

#include "mlp/monarch_mlp_output.cuh"
#include "mlp/monarch_mlp_ring.cuh"
#include "mlp/monarch_mlp_rows.cuh"

namespace mw {

template <class C>
struct MonarchMlp {
  using T = typename C::T;
  using Block = typename MlpRows<C>::Block;
  static constexpr int NB = kMlpBlocks, Q = C::q, MT = C::m_tiles;

  const MonarchMlpArgs& args;
  MlpRows<C> x, t, u;
  MlpRing<C> ring;

  MW_DEVICE explicit MonarchMlp(const MonarchMlpArgs& arguments)
      : args(arguments),
        x(start_copy(arguments)),
        t(shared_memory() + MlpRows<C>::bytes),
        u(shared_memory()),
        ring(arguments, shared_memory() + 2 * MlpRows<C>::bytes) {}

  // The copies of x are the oldest group, so waiting for the first stage is waiting for x too.
  MW_DEVICE static MlpRows<C> start_copy(const MonarchMlpArgs& arguments) {
    MlpRows<C> rows(shared_memory());
    rows.copy_in(arguments);
    return rows;
  }

  MW_DEVICE void run() {
    if (args.norm_weight != nullptr) normalise();
    first_factor();
    launch_dependent_grids();
    hidden();
    sync_block();  // sync: u complete
    last_factor();
  }

  MW_DEVICE void normalise() {
    copy_async_wait<C::stages - 1>();  // sync: x landed
    sync_block();                      // sync: x shared
#pragma unroll 1
    for (int row = warp(); row < C::rows; row += C::row_warps * C::column_warps) x.normalise(row, args);
  }

  // c += rows of a block x 16 columns of weights
  MW_DEVICE void multiply_16(float (&c)[MT][2][4], const Block& a, const char* weights) {
    MW_UNROLL
    for (int step = 0; step < C::steps; step++) {
      uint32_t w[4];
      load_weights(w, weights, step);
      MW_UNROLL
      for (int m = 0; m < MT; m++) {
        mma_16x8x16<T>(c[m][0], a[m][step], w[0], w[1]);
        mma_16x8x16<T>(c[m][1], a[m][step], w[2], w[3]);
      }
    }
  }

  // ---- phase 1 ----

  MW_DEVICE void first_factor() {
    Block a;
#pragma unroll 1
    for (int unit = 0; unit < C::units_per_warp; unit += 2) {
      const char* weights = ring.acquire_slot();
#pragma unroll 1
      for (int i = unit; i < unit + 2 && i < C::units_per_warp; i++) {
        const int block = C::column_warp() * C::blocks_per_warp + i / C::steps, step = i % C::steps;
        if (step == 0) x.load_block(a, block);
        float c[MT][2][4] = {};
        multiply_16(c, a, weights + (i - unit) * MlpRing<C>::unit_bytes);
        MW_UNROLL
        for (int m = 0; m < MT; m++) {
          t.store_permuted(m, block, step * 16, c[m][0]);
          t.store_permuted(m, block, step * 16 + 8, c[m][1]);
        }
      }
    }
  }

  // ---- phase 2 ----

  // The accumulators of 16 hidden columns start as their bias, which lies behind the weights.
  MW_DEVICE void load_bias(float (&c)[MT][2][4], const char* weights) {
    MW_UNROLL
    for (int half = 0; half < 2; half++) {
      const char* at = weights + MlpRing<C>::piece_bytes + (half * 8 + lane() % 4 * 2) * 4;
      const Float2 bias = *reinterpret_cast<const Float2*>(at);
      MW_UNROLL
      for (int m = 0; m < MT; m++) {
        MW_UNROLL
        for (int i = 0; i < 4; i++) c[m][half][i] = bias.v[i % 2];
      }
    }
  }

  // 16 hidden columns. Where a lane has an accumulator of m16n8 it needs, for the next product, an A operand of
  // m16n8k16: two accumulator tiles side by side are one operand, register by register.
  MW_DEVICE void hidden_columns(uint32_t (&h)[MT][4], const Block& a, const char* weights) {
    float c[MT][2][4];
    load_bias(c, weights);
    multiply_16(c, a, weights);
    MW_UNROLL
    for (int m = 0; m < MT; m++) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        const float* two = &c[m][i / 2][i % 2 * 2];
        h[m][i] = pack2<T>(gelu<T>(two[0]), gelu<T>(two[1]));
      }
    }
  }

  MW_DEVICE void hidden() {
    // Block 0 of t is read without a barrier: no column of it comes from the last two units of a block, and only those
    // may be in phase 1's last stage. A stage is waited for before the other blocks are read.
    static_assert(16 * (C::steps - 2) >= C::sub_block);
    const int first = C::column_warp() * C::blocks_per_warp;
#pragma unroll 1
    for (int block = first; block < first + C::blocks_per_warp; block++) {
      float sums[MT][2 * C::steps][4] = {};
#pragma unroll 1
      for (int l = 0; l < NB; l++) {
        Block a;
        t.load_block(a, l);
#pragma unroll 1
        for (int group = 0; group < args.groups; group++) {
          const char* weights = ring.acquire_slot();
          uint32_t h[MT][4];
          hidden_columns(h, a, weights);
          add_product(sums, h, weights + MlpRing<C>::piece_bytes / 2);
        }
      }
      MW_UNROLL
      for (int m = 0; m < MT; m++) {
        MW_UNROLL
        for (int i = 0; i < 2 * C::steps; i++) u.store_permuted(m, block, i * 8, sums[m][i]);
      }
    }
  }

  // sums += 16 hidden columns x their weights for all columns of a block
  MW_DEVICE void add_product(float (&sums)[MT][2 * C::steps][4], const uint32_t (&h)[MT][4], const char* weights) {
    MW_UNROLL
    for (int step = 0; step < C::steps; step++) {
      uint32_t w[4];
      load_weights(w, weights, step);
      MW_UNROLL
      for (int m = 0; m < MT; m++) {
        mma_16x8x16<T>(sums[m][2 * step], h[m], w[0], w[1]);
        mma_16x8x16<T>(sums[m][2 * step + 1], h[m], w[2], w[3]);
      }
    }
  }

  // ---- phase 3 ----

  // A column warp takes one m16 tile of its rows, all of its u in registers, and MT of the units of a stage.
  MW_DEVICE void last_factor() {
    const int m_tile = C::column_warp() % MT, first_slot = C::column_warp() / MT * MT;
    const int units = args.width / (8 * NB);
    const MlpOutput<C> output{args, block_x() * C::rows + MlpRows<C>::tile_row(m_tile)};
    uint32_t a[NB * C::steps][4];
    MW_UNROLL
    for (int i = 0; i < NB * C::steps; i++) u.load_fragment(a[i], m_tile, i % NB * Q + i / NB * 16);
#pragma unroll 1
    for (int first = first_slot; first - first_slot < units; first += C::column_warps) {
      typename MlpOutput<C>::Residual residual[MT];  // read before the wait for weights, not after
      MW_UNROLL
      for (int i = 0; i < MT; i++)
        if (first + i < units) output.load_residual(residual[i], first + i);
      const char* weights = ring.acquire() + first_slot * C::slot_bytes;
      MW_UNROLL
      for (int i = 0; i < MT; i++) {
        if (first + i >= units) continue;
        float c[NB][4] = {};
        multiply_unit(c, a, weights + i * C::slot_bytes);
        output.store(c, first + i, residual[i]);
      }
    }
  }

  // c[j] += u of block j x 8 columns of weights; neighbouring products belong to different sums.
  MW_DEVICE void multiply_unit(float (&c)[NB][4], const uint32_t (&a)[NB * C::steps][4], const char* weights) {
    MW_UNROLL
    for (int i = 0; i < NB * C::steps; i += 2) {
      uint32_t w[4];
      load_weights(w, weights, i / 2);
      mma_16x8x16<T>(c[i % NB], a[i], w[0], w[1]);
      mma_16x8x16<T>(c[(i + 1) % NB], a[i + 1], w[2], w[3]);
    }
  }
};

template <class C>
MW_GLOBAL(C::threads, 1) monarch_mlp(const MonarchMlpArgs args) {
  wait_on_dependent_grids();
  MonarchMlp<C>(args).run();
}

// ---- launch ----

// A build of fewer variants defines this; variants that are left out are refused like any unknown shape.
#ifndef MW_MONARCH_MLP_BUILT
#define MW_MONARCH_MLP_BUILT(T, block_width, tile) true
#endif

template <class T, int q, int tile>
const char* monarch_mlp_launch_tile(const MonarchMlpArgs& args, Stream stream) {
  if constexpr (monarch_mlp_tile(q, tile).exists() && MW_MONARCH_MLP_BUILT(T, q, tile)) {
    using C = MlpConfig<T, q, tile>;
    if (C::shared_bytes > args.shared_limit) return "monarch_mlp: tile needs more shared memory than the device has";
    const dim3 grid((args.rows + C::rows - 1) / C::rows);
    return launch<monarch_mlp<C>>(grid, C::threads, C::shared_bytes, stream, args);
  } else {
    return "monarch_mlp: no such tile for this block width";
  }
}

template <class T, int q>
const char* monarch_mlp_launch_width(int tile, const MonarchMlpArgs& args, Stream stream) {
  switch (tile) {
    case 0: return monarch_mlp_launch_tile<T, q, 0>(args, stream);
    case 1: return monarch_mlp_launch_tile<T, q, 1>(args, stream);
    case 2: return monarch_mlp_launch_tile<T, q, 2>(args, stream);
    case 3: return monarch_mlp_launch_tile<T, q, 3>(args, stream);
    default: return "monarch_mlp: tile must be 0, 1, 2 or 3";
  }
}

template <class T>
const char* monarch_mlp_launch_dtype(int tile, const MonarchMlpArgs& args, Stream stream) {
  switch (args.block_width) {
    case 48: return monarch_mlp_launch_width<T, 48>(tile, args, stream);
    case 64: return monarch_mlp_launch_width<T, 64>(tile, args, stream);
    case 80: return monarch_mlp_launch_width<T, 80>(tile, args, stream);
    case 96: return monarch_mlp_launch_width<T, 96>(tile, args, stream);
    default: return "monarch_mlp: block width must be 48, 64, 80 or 96";
  }
}

inline int monarch_mlp_tiles() { return kMlpTiles; }

// Returns nullptr once launched (or if there are no rows), otherwise why nothing was launched.
inline const char* monarch_mlp_launch(DType dtype, int tile, const MonarchMlpArgs& args, Stream stream) {
  if (args.rows <= 0) return args.rows == 0 ? nullptr : "monarch_mlp: negative number of rows";
  if (args.groups <= 0) return "monarch_mlp: no hidden columns";
  if (args.width <= 0 || args.width % (8 * kMlpBlocks) != 0) return "monarch_mlp: width must be a multiple of 32";
  if (args.width > kMlpBlocks * args.block_width) return "monarch_mlp: width exceeds 4 block widths";
  return dtype == DType::bf16 ? monarch_mlp_launch_dtype<bf16>(tile, args, stream)
                              : monarch_mlp_launch_dtype<fp16>(tile, args, stream);
}

}  // namespace mw
