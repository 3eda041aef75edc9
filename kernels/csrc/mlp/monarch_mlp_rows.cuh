// The rows of tokens of the fused Monarch MLP in shared memory: copied in, normalised, read and written as fragments.
#pragma once

#include "mlp/monarch_mlp_tiles.cuh"

namespace mw {

// A buffer of C::rows rows of NB blocks of Q columns.
template <class C>
struct MlpRows {
  using T = typename C::T;
  static constexpr int NB = kMlpBlocks, Q = C::q, MT = C::m_tiles;
  static constexpr int bytes = C::rows * C::row_elements * 2;
  // One block of a row warp's rows as A operands of mma.m16n8k16.
  using Block = uint32_t[MT][C::steps][4];

  T* buffer;

  MW_DEVICE explicit MlpRows(char* memory) : buffer(reinterpret_cast<T*>(memory)) {}

  // The first of the 16 rows of a row warp's m16 tile, within the buffer.
  MW_DEVICE static int tile_row(int m_tile) { return (C::row_warp() * MT + m_tile) * 16; }

  // ---- in ----

  // Starts copying rows, as one group; rows beyond the last one and columns that pad a block become zeros.
  MW_DEVICE void copy_in(const MonarchMlpArgs& args) {
    constexpr int block_chunks = Q / 8, row_chunks = NB * block_chunks;
    const int features = args.width / NB;
    for (int i = thread_index(); i < C::rows * row_chunks; i += C::threads) {
      const int row = i / row_chunks, block = i % row_chunks / block_chunks, column = i % block_chunks * 8;
      const int from_row = block_x() * C::rows + row;
      const bool valid = from_row < args.rows && column < features;
      const int64_t from = static_cast<int64_t>(from_row) * args.width + block * features + column;
      copy_async_16(buffer + row * C::row_elements + block * Q + column,
                    static_cast<const T*>(args.x) + (valid ? from : 0), valid);
    }
    copy_async_commit();
  }

  // Calls visit(two features, index of the first) for this lane's share of a row.
  template <class Visit>
  MW_DEVICE void for_pairs(int row, int features, Visit visit) {
    MW_UNROLL
    for (int block = 0; block < NB; block++) {
      MW_UNROLL
      for (int first = 0; first < Q; first += 64) {
        const int column = first + 2 * lane();
        if (column < features)
          visit(*reinterpret_cast<uint32_t*>(buffer + row * C::row_elements + block * Q + column),
                block * features + column);
      }
    }
  }

  // Applies LayerNorm to a row with one warp, in place; the mean is subtracted before squaring, as in the definition.
  MW_DEVICE void normalise(int row, const MonarchMlpArgs& args) {
    const int features = args.width / NB;
    const auto width = static_cast<float>(args.width);
    float sum = 0, squares = 0, low, high;
    for_pairs(row, features, [&](uint32_t& pair, int) {
      unpack2<T>(pair, low, high);
      sum += low + high;
    });
    const float mean = warp_sum(sum) / width;
    for_pairs(row, features, [&](uint32_t& pair, int) {
      unpack2<T>(pair, low, high);
      squares += (low - mean) * (low - mean) + (high - mean) * (high - mean);
    });
    const float scale = 1.0f / sqrtf(warp_sum(squares) / width + args.eps);
    for_pairs(row, features, [&](uint32_t& pair, int i) {
      unpack2<T>(pair, low, high);
      pair = pack2<T>((low - mean) * scale * args.norm_weight[i] + args.norm_bias[i],
                      (high - mean) * scale * args.norm_weight[i + 1] + args.norm_bias[i + 1]);
    });
  }

  // ---- fragments ----

  MW_DEVICE void load_fragment(uint32_t (&a)[4], int m_tile, int column) const {
    ldmatrix_x4(a, buffer + (tile_row(m_tile) + lane() % 16) * C::row_elements + column + lane() / 16 * 8);
  }

  MW_DEVICE void load_block(Block& a, int block) const {
    MW_UNROLL
    for (int step = 0; step < C::steps; step++) {
      MW_UNROLL
      for (int m = 0; m < MT; m++) load_fragment(a[m][step], m, block * Q + step * 16);
    }
  }

  // Writes an accumulator tile, 8 columns that block k made, each to the block that will read it: the permutation
  // between two factors. Column j * sub_block + i of block k goes to column k * sub_block + i of block j.
  MW_DEVICE void store_permuted(int m_tile, int k, int first_column, const float (&c)[4]) {
    const int column = first_column + lane() % 4 * 2;
    const int to = column / C::sub_block * Q + k * C::sub_block + column % C::sub_block;
    T* at = buffer + (tile_row(m_tile) + lane() / 4) * C::row_elements + to;
    *reinterpret_cast<uint32_t*>(at) = pack2<T>(c[0], c[1]);
    *reinterpret_cast<uint32_t*>(at + 8 * C::row_elements) = pack2<T>(c[2], c[3]);
  }
};

}  // namespace mw
