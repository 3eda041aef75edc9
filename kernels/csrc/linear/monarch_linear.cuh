// A whole Monarch layer in one launch: y = act(Monarch(x) + bias) + residual, the intermediate in shared memory.
//
// A block has some rows of x. Phase 1 multiplies them by the first factor, input block after input block, and writes
// the intermediate t to shared memory sorted by output block; phase 2 multiplies each output block of t by its part of
// the second factor. A thread then holds adjacent rows of w2 for all output blocks, which are adjacent outputs: neither
// permutation moves any data. If there are few rows, several blocks share them: each computes all of t and a part of
// the outputs.
//
// Both phases read chunks, some columns deep, from a ring of buffers that goes on from phase 1 to phase 2 without a
// pause. A NaN in x stays in its row: rows never meet, and padding is zeros times zeros.
#pragma once
#include "linear/linear_chunks.cuh"
#include "linear/linear_outputs.cuh"

namespace mw {
namespace linear {

// ---- products ----

// The rows of x in a chunk, as left operands of mma. `row`: this warp's first.
template <class C>
struct StagedRows {
  const typename C::T* row;
  MW_DEVICE void load(uint32_t (&left)[2][4], int, int step) const {
    const int chunk = swizzled<C>(lane() % 16, 2 * step + lane() / 16);
    MW_UNROLL
    for (int half = 0; half < 2; half++) ldmatrix_x4(left[half], row + half * 16 * C::depth + chunk);
  }
};

// The rows of t, from the first column of the chunk's depth in output block 0 on.
template <class C>
struct IntermediateRows {
  const typename C::T* row;
  int pitch, block_columns;
  MW_DEVICE void load(uint32_t (&left)[2][4], int block, int step) const {
    const int column = block * block_columns + step * 16 + (lane() / 16) * 8;
    MW_UNROLL
    for (int half = 0; half < 2; half++) ldmatrix_x4(left[half], row + (half * 16 + lane() % 16) * pitch + column);
  }
};

// sum += left * weights for `Units` units of columns of each block, 16 columns of depth.
template <class C, int Units, int Blocks, int Tiles, class Left>
MW_DEVICE void multiply_step(float (&sum)[Blocks][2][Tiles][4], const Left& left, const typename C::T* weights,
                             int block_elements, int step) {
  using T = typename C::T;
  const T* row = weights + swizzled<C>(lane() % 8 + (lane() / 16) * 8, 2 * step + (lane() / 8) % 2);
  MW_UNROLL
  for (int block = 0; block < Blocks; block++) {
    uint32_t a[2][4];
    left.load(a, block, step);
    MW_UNROLL
    for (int unit = 0; unit < Units; unit++) {
      uint32_t b[4];
      ldmatrix_x4(b, row + block * block_elements + unit * kUnit * C::depth);
      MW_UNROLL
      for (int half = 0; half < 2; half++) {
        mma_16x8x16<T>(sum[block][half][2 * unit], a[half], b[0], b[1]);
        mma_16x8x16<T>(sum[block][half][2 * unit + 1], a[half], b[2], b[3]);
      }
    }
  }
}

// The same for a chunk, whole or (where a phase's depth ends) its first 16 columns, and for `units` known only now, at
// most `Units`: one unrolled body for each count, because accumulators are registers.
template <class C, int Units, int Blocks, int Tiles, class Left>
MW_DEVICE void multiply_chunk(float (&sum)[Blocks][2][Tiles][4], const Left& left, const typename C::T* weights,
                              int block_elements, bool whole, int units) {
  if (units == Units) {
    if (C::depth > 16 && whole) {  // in one piece, so that loads of the second step run under the first
      multiply_step<C, Units>(sum, left, weights, block_elements, 0);
      multiply_step<C, Units>(sum, left, weights, block_elements, 1);
    } else {
      multiply_step<C, Units>(sum, left, weights, block_elements, 0);
    }
  } else if constexpr (Units > 1) {
    multiply_chunk<C, Units - 1>(sum, left, weights, block_elements, whole, units);
  }
}

// Products of input block `k` to t, where column n = j*c + i of the block goes to column j*R + k*c + i. `column`: of
// the warp's first unit. Pairs of columns stay together because c is even.
template <class C>
MW_DEVICE void store_intermediate(typename C::T* row, int pitch, const float (&sum)[1][2][2 * C::units1][4], int k,
                                  int c, int column, int units) {
  MW_UNROLL
  for (int tile = 0; tile < 2 * C::units1; tile++) {
    if (tile / 2 >= units) continue;
    const int n = column + tile * 8 + 2 * (lane() % 4);
    int j = 0;
    MW_UNROLL
    for (int block = 1; block < C::nblocks; block++) j += n >= block * c;
    typename C::T* to = row + (lane() / 4) * pitch + n + k * c + j * (C::nblocks - 1) * c;
    MW_UNROLL
    for (int i = 0; i < 4; i++) {
      const float* pair = &sum[0][i / 2][tile][2 * (i % 2)];
      *reinterpret_cast<uint32_t*>(to + i * 8 * pitch) = pack2<typename C::T>(pair[0], pair[1]);
    }
  }
}

// ---- the kernel ----

template <class C>
MW_GLOBAL(C::threads, C::min_blocks) monarch_linear(const Problem args) {
  using T = typename C::T;
  wait_on_dependent_grids();
  const int block_columns = C::nblocks * args.c, pitch = C::nblocks * block_columns + kPad;
  const int64_t first_row = static_cast<int64_t>(block_x()) * C::rows;
  const int rows = min(args.rows - first_row, C::rows);
  const int warp_row = (warp() % C::row_warps) * kWarpRows, column_warp = warp() / C::row_warps;
  const bool active = warp_row < rows;
  T* t = reinterpret_cast<T*>(shared_memory());
  T* warp_t = t + warp_row * pitch;
  Chunks<C> chunks(args, t + C::rows * pitch, first_row, rows);

  for (int k = 0; k < C::nblocks; k++) {
    for (int first = 0; first < block_columns; first += C::width1) {
      const ColumnRange range = column_range<C>(column_warp, min(C::width1, block_columns - first), active);
      float sum[1][2][2 * C::units1][4] = {};
      for (int depth = 0; depth < chunks.depth1; depth += C::depth) {
        chunks.wait();       // sync: phase 1 wait
        sync_block();        // sync: phase 1 barrier
        chunks.copy_next();  // sync: phase 1 copy
        const StagedRows<C> left{chunks.current() + warp_row * C::depth};
        const T* weights = chunks.current() + (C::rows + range.first) * C::depth;
        multiply_chunk<C, C::units1>(sum, left, weights, 0, depth + 16 < chunks.depth1, range.units);
        chunks.advance();
      }
      store_intermediate<C>(warp_t, pitch, sum, k, args.c, first + range.first, range.units);
    }
  }

  launch_dependent_grids();
  for (int first = chunks.first_column; first < chunks.last_column; first += C::width2) {
    const ColumnRange range = column_range<C>(column_warp, min(C::width2, chunks.last_column - first), active);
    const int column = first + range.first;
    float sum[C::nblocks][2][2 * C::units2][4] = {};
    for (int depth = 0; depth < block_columns; depth += C::depth) {
      chunks.wait();                 // sync: phase 2 wait
      sync_block();                  // sync: phase 2 barrier, which the intermediate waits for too
      chunks.copy_next_of_phase2();  // sync: phase 2 copy
      const IntermediateRows<C> left{warp_t + depth, pitch, block_columns};
      const T* weights = chunks.current() + range.first * C::depth;
      multiply_chunk<C, C::units2>(sum, left, weights, C::width2 * C::depth, depth + 16 < block_columns, range.units);
      chunks.advance();
    }
    const int row = warp_row + lane() / 4;
    store_outputs<C>(args, sum, first_row + row, rows - row, column, range.units);
  }
  copy_async_wait<0>();
}

// ---- launches ----

template <class C>
size_t shared_bytes(const Problem& problem) {
  const size_t pitch = C::nblocks * C::nblocks * static_cast<size_t>(problem.c) + kPad;
  return sizeof(typename C::T) * (C::rows * pitch + static_cast<size_t>(problem.stages) * C::stage);
}

// How many blocks share the same rows: the number with which the last block ends first, given that blocks take turns on
// the multiprocessors and each does all of phase 1 and its part of phase 2. Another block must save a twentieth, since
// it also reads x and the first factor again.
template <class C>
void choose_split(Problem& problem, int64_t row_tiles) {
  const int64_t resident = 1 + (problem.shared_limit - shared_bytes<C>(problem)) / (shared_bytes<C>(problem) + 1024);
  const int64_t at_once = problem.multiprocessors * (resident < C::min_blocks ? resident : C::min_blocks);
  const int pieces = (problem.s + C::step2 - 1) / C::step2;
  int64_t least = INT64_MAX;
  for (int split = 1; split <= pieces; split++) {
    const int columns = (pieces + split - 1) / split * C::step2;
    const int64_t turns = (row_tiles * split + at_once - 1) / at_once;
    const int64_t time = turns * (problem.p + columns);
    if (least - time <= least / 20) continue;
    least = time;
    problem.split_columns = columns;
  }
}

template <class C>
const char* launch_tile(const MonarchLinearArgs& args, Stream stream) {
  Problem problem{args, C::stages, 0};
  while (shared_bytes<C>(problem) > static_cast<size_t>(args.shared_limit)) {
    if (problem.stages == 2) return "monarch_linear: the tile needs more shared memory than a block may have";
    problem.stages--;
  }
  const int64_t row_tiles = (static_cast<int64_t>(args.rows) + C::rows - 1) / C::rows;
  choose_split<C>(problem, row_tiles);
  const int splits = (args.s + problem.split_columns - 1) / problem.split_columns;
  const dim3 grid(static_cast<unsigned>(row_tiles), static_cast<unsigned>(splits));
  return launch<monarch_linear<C>>(grid, C::threads, shared_bytes<C>(problem), stream, problem);
}

// Tile variants for `N` blocks: warps by rows and columns, depth, units of columns in each phase, buffers, blocks of a
// multiprocessor. A thread's sums take 16 * units1 registers in phase 1 and 16 * units2 * N in phase 2.
template <class T, int N>
using Rows128 = Tile<T, N, 4, 2, 32, 4, 8 / N, 3, 1>;  // weights are read least often
template <class T, int N>
using Rows64 = Tile<T, N, 2, 4, 32, 3, 8 / N, 3, 1>;  // many columns, so x is read least often
template <class T, int N>
using Rows64Twice = Tile<T, N, 2, 2, 32, 4, 8 / N, 3, 2>;  // two small blocks at a time
template <class T, int N>
using Rows32 = Tile<T, N, 1, 4, N == 8 ? 16 : 32, 3, N == 8 ? 1 : 4 / N, 4, N == 8 ? 2 : 3>;  // least shared memory

template <class T, int N>
const char* launch_variant(int tile, const MonarchLinearArgs& args, Stream stream) {
  switch (tile) {
    case 0: return launch_tile<Rows128<T, N>>(args, stream);
    case 1: return launch_tile<Rows64<T, N>>(args, stream);
    case 2: return launch_tile<Rows64Twice<T, N>>(args, stream);
    case 3: return launch_tile<Rows32<T, N>>(args, stream);
    default: return "monarch_linear: no such tile";
  }
}

template <class T>
const char* launch_dtype(int tile, const MonarchLinearArgs& args, Stream stream) {
  switch (args.nblocks) {
    case 2: return launch_variant<T, 2>(tile, args, stream);
    case 4: return launch_variant<T, 4>(tile, args, stream);
    case 8: return launch_variant<T, 8>(tile, args, stream);
    default: return "monarch_linear: nblocks must be 2, 4 or 8";
  }
}

}  // namespace linear

// Tile variants; each is valid for every shape unless shared memory is short.
inline int monarch_linear_tiles() { return 4; }

// Returns nullptr, or why nothing was launched.
inline const char* monarch_linear_launch(DType dtype, int tile, const MonarchLinearArgs& args, Stream stream) {
  if (args.rows < 0 || args.p < 1 || args.c < 1 || args.s < 1) return "monarch_linear: a size is not positive";
  if (args.p % 8 != 0) return "monarch_linear: p must be a multiple of 8";
  if (args.c % 2 != 0 || args.nblocks * args.c % 16 != 0) return "monarch_linear: nblocks * c must be a multiple of 16";
  if (args.s % 2 != 0 || args.nblocks * args.s % 8 != 0)
    return "monarch_linear: s must be even and nblocks * s a multiple of 8";
  if (args.multiprocessors < 1) return "monarch_linear: a device has multiprocessors";
  if (misaligned(args.x, args.w1, args.w2, args.bias, args.residual, args.y))
    return "monarch_linear: tensors must be 16-byte aligned";
  if (args.rows == 0) return nullptr;
  return dtype == DType::bf16 ? linear::launch_dtype<bf16>(tile, args, stream)
                              : linear::launch_dtype<fp16>(tile, args, stream);
}

}  // namespace mw
