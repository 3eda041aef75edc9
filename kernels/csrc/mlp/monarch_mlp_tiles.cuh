// The fused Monarch MLP's arguments, its tile variants, and how each divides the threads and the shared memory.
#pragma once

#include "primitives.cuh"

namespace mw {

// Blocks of each factor.
constexpr int kMlpBlocks = 4;

struct MonarchMlpArgs {
  const void* x;             // (rows, width) T
  const void* factor1;       // (4, Q/16, Q/16, 32, 8) T
  const void* stream;        // (4, 4, groups, 2, Q/16, 32, 8) T
  const void* factor2;       // (width/32, Q/8, 32, 8) T
  const float* bias1;        // (4, 4, groups, 16)
  const float* bias2;        // (width)
  const void* residual;      // (rows, width) T, or null
  const float* norm_weight;  // (width), or null: no LayerNorm
  const float* norm_bias;    // (width)
  void* y;                   // (rows, width) T; may be x or the residual
  float eps;
  int rows;
  int width;
  int block_width;   // Q: 16 times factor1's second dimension
  int groups;        // stream's third dimension
  int shared_limit;  // bytes of shared memory that a block may have on this device
};

// Each row warp has 16 * m_tiles rows of tokens; the column warps that share them split the blocks of a factor.
struct MlpTile {
  int m_tiles = 0;  // 16-row tiles that share each weight fragment read from shared memory
  int row_warps = 0;
  int column_warps = 0;

  constexpr bool exists() const { return m_tiles > 0; }
  constexpr int rows() const { return 16 * m_tiles * row_warps; }
  constexpr int threads() const { return 32 * row_warps * column_warps; }
};

constexpr int kMlpTiles = 4;

// Tile 0 is for few rows, 1 for devices with little shared memory, 2 for most, 3 for many rows.
//
// With two m16 tiles, a warp reads half as many weights from shared memory for each product.
constexpr MlpTile monarch_mlp_tile(int block_width, int tile) {
  const bool wide = block_width > 64;
  if (tile == 0) return {1, 1, 4};
  if (tile == 1 && wide) return {2, 1, 4};
  if (tile == 2) return wide ? MlpTile{2, 2, 4} : MlpTile{2, 2, 2};  // eight warps, or four in half the memory
  if (tile == 3) return {2, 4, 2};
  return {};
}

// A row of a token buffer: 16 bytes longer than its features, so that ldmatrix meets no bank twice.
constexpr int monarch_mlp_row_elements(int block_width) { return kMlpBlocks * block_width + 8; }

// A slot of the weight ring: one column warp's part of a stage, and 16 floats of bias1.
constexpr int monarch_mlp_slot_bytes(int block_width) { return 64 * block_width + 64; }

constexpr int monarch_mlp_buffer_bytes(int block_width, MlpTile tile) {
  return 2 * tile.rows() * monarch_mlp_row_elements(block_width) * 2;
}

// Stages of the weight ring: as many, up to 4, as fit on the smallest kind of device that has room for two.
constexpr int monarch_mlp_stages(int block_width, MlpTile tile) {
  constexpr int kSharedLimits[] = {99 * 1024, 163 * 1024, 227 * 1024};  // sm_86/89/120, sm_80, sm_90/100
  const int stage = tile.column_warps * monarch_mlp_slot_bytes(block_width);
  for (const int limit : kSharedLimits) {
    const int stages = (limit - monarch_mlp_buffer_bytes(block_width, tile)) / stage;
    if (stages >= 2) return stages < 4 ? stages : 4;
  }
  return 0;
}

// Shared memory of a block; 0 where there is no such tile.
constexpr int monarch_mlp_shared_bytes(int block_width, int tile) {
  const MlpTile shape = monarch_mlp_tile(block_width, tile);
  if (!shape.exists()) return 0;
  const int stage = shape.column_warps * monarch_mlp_slot_bytes(block_width);
  const int ring = monarch_mlp_stages(block_width, shape) * stage;
  return monarch_mlp_buffer_bytes(block_width, shape) + ring;
}

// One variant: all compile-time constants of a kernel.
template <class T_, int q_, int tile_>
struct MlpConfig {
  using T = T_;
  static constexpr MlpTile tile = monarch_mlp_tile(q_, tile_);
  static constexpr int q = q_;
  static constexpr int m_tiles = tile.m_tiles, row_warps = tile.row_warps, column_warps = tile.column_warps;
  static constexpr int rows = tile.rows(), threads = tile.threads();
  static constexpr int row_elements = monarch_mlp_row_elements(q);
  static constexpr int stages = monarch_mlp_stages(q, tile);
  static constexpr int slot_bytes = monarch_mlp_slot_bytes(q);
  static constexpr int shared_bytes = monarch_mlp_shared_bytes(q, tile_);
  static constexpr int steps = q / 16;                               // k16 steps of a block
  static constexpr int blocks_per_warp = kMlpBlocks / column_warps;  // input blocks of a column warp
  static constexpr int units_per_warp = blocks_per_warp * steps;     // 16-row units of factor1 of a column warp
  static constexpr int sub_block = q / kMlpBlocks;                   // columns that one block hands to another
  static_assert(q % 16 == 0 && sub_block % 2 == 0, "pairs of columns must stay together");
  static_assert(kMlpBlocks % column_warps == 0 && column_warps % m_tiles == 0 && stages >= 2);

  MW_DEVICE static int column_warp() { return warp() / row_warps; }
  MW_DEVICE static int row_warp() { return warp() % row_warps; }
};

}  // namespace mw
