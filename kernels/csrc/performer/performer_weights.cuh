// Performer attention, second launch: its tile and the packed weights, which stay in shared memory or pass through it.
#pragma once
#include "performer/performer_args.cuh"

namespace mw {
namespace performer {

// `RowTiles`: a warp's tiles of 16 rows. `Stages`: with 0, all weights stay in shared memory, and no warp waits;
// otherwise they pass through a ring of that many pieces, and all warps of the block go in step.
template <class Number, int Dim, bool Mlp, int RowTiles, int Warps, int Stages, int MinBlocks>
struct OutputTile {
  using T = Number;
  using Layout = Packed<T, Dim>;
  static constexpr int dim = Dim, features = Dim / 2, row_tiles = RowTiles, warps = Warps, stages = Stages;
  static constexpr int threads = 32 * warps, min_blocks = MinBlocks, warp_rows = 16 * row_tiles;
  static constexpr bool mlp = Mlp;
  static constexpr int steps = Layout::steps, terms = kTerms<T>, columns = dim / 8;  // tiles of 8 columns
  static constexpr int pieces = Layout::pieces_without_mlp + (mlp ? Layout::mlp_pieces : 0);
  static constexpr int unit_bytes = kUnit * 2;
  static constexpr int stage_units =
      Layout::feature_piece > Layout::dense_piece ? Layout::feature_piece : Layout::dense_piece;
  static constexpr int total_units = Layout::projection + (pieces - Layout::feature_tiles) * Layout::dense_piece;
  static constexpr int weight_bytes = unit_bytes * (stages == 0 ? total_units : stages * stage_units);
  static constexpr int bias_rows = mlp ? 3 : 1, bias_bytes = bias_rows * dim * 4;
  // Fragments of kv, (feature tile, tile of 8 columns, lane): the last tile's first column is the features'
  // sum, its others are zero.
  static constexpr int kv_bytes = Layout::feature_tiles * (columns + 1) * 32 * 16;
  static constexpr int shared_bytes = weight_bytes + kv_bytes + bias_bytes;
  static_assert(pieces % (stages == 0 ? 1 : stages) == 0);  // a pass over the pieces ends where the ring does
};

// Hands out the packed weights piece by piece, in order, again and again.
template <class C>
struct Weights {
  const char* global;
  char* shared;
  bool again = true;  // another pass follows this one

  // Starts the first copies.
  MW_DEVICE void start() const {
    if constexpr (C::stages == 0) {
      copy(shared, global, C::total_units);
      copy_async_commit();
    } else {
      MW_UNROLL
      for (int i = 0; i < C::stages - 1; i++) start_copy(i);
    }
  }

  // Only where all weights stay: once, before the first piece.
  MW_DEVICE void wait_for_all() const {
    copy_async_wait<0>();  // sync: resident wait
    sync_block();          // sync: resident barrier
  }

  // The address of piece `i`, which must be the one after the last. It stays valid until the next call.
  MW_DEVICE const char* piece(int i) const {
    if constexpr (C::stages == 0) {
      return shared + offset(i);
    } else {
      if constexpr (C::stages == 1) {
        sync_block();  // sync: single stage is free
        start_copy(i);
        copy_async_wait<0>();  // sync: single stage wait
        sync_block();          // sync: single stage barrier
      } else {
        copy_async_wait<C::stages - 2>();  // sync: piece wait
        sync_block();                      // sync: piece barrier
        start_copy(i + C::stages - 1);
      }
      return shared + i % C::stages * C::stage_units * C::unit_bytes;
    }
  }

 private:
  static MW_DEVICE int offset(int i) {
    constexpr int tiles = C::Layout::feature_tiles;
    const int units =
        i < tiles ? i * C::Layout::feature_piece : C::Layout::projection + (i - tiles) * C::Layout::dense_piece;
    return units * C::unit_bytes;
  }

  static MW_DEVICE void copy(char* to, const char* from, int units) {
    MW_NO_UNROLL
    for (int i = thread_index(); i < units * 32; i += C::threads) copy_async_16(to + i * 16, from + i * 16, true);
  }

  // Of this pass's piece `i` or, past its end, the next pass's; without a next pass a group of no copies.
  MW_DEVICE void start_copy(int i) const {
    const int piece = i < C::pieces ? i : i - C::pieces;
    const int units = piece < C::Layout::feature_tiles ? C::Layout::feature_piece : C::Layout::dense_piece;
    if (i < C::pieces || again)
      copy(shared + i % C::stages * C::stage_units * C::unit_bytes, global + offset(piece), units);
    copy_async_commit();
  }
};

}  // namespace performer
}  // namespace mw
