// The ring of buffers of the Monarch linear kernel: chunks of x and weights, copied ahead in the order of their use.
#pragma once
#include "primitives.cuh"

namespace mw {

// The factors are laid out by kernels/blocked.py: w1 (nblocks, nblocks*c, p rounded up to 16), w2 (nblocks, s,
// nblocks*c). All pointers are 16-byte aligned.
struct MonarchLinearArgs {
  const void* x;         // (rows, nblocks*p)
  const void* w1;        // rows of input block k, sorted by output block
  const void* w2;        // columns of output block j, sorted by input block
  const float* bias;     // (nblocks*s,) or nullptr
  const void* residual;  // (rows, nblocks*s) or nullptr
  void* y;               // (rows, nblocks*s)
  int rows, nblocks, p, c, s;
  Activation activation;
  int multiprocessors;  // of the device
  int shared_limit;     // bytes of shared memory that a block may have
};

namespace linear {

constexpr int kUnit = 16;      // columns that are handed to warps together: two mma tiles, one ldmatrix of weights
constexpr int kWarpRows = 32;  // two mma heights, so that each fragment of weights is multiplied twice
constexpr int kPad = 8;        // 16 bytes: rows of t that are 8 apart begin in 8 different groups of banks

// Arguments that the launch adds.
struct Problem : MonarchLinearArgs {
  int stages;         // buffers of the ring: 2, 3 or 4
  int split_columns;  // rows of w2 that a block multiplies
};

// `Units1`, `Units2`: units of columns that a warp holds in a phase, in the second of each output block. `Depth`:
// columns of depth of a chunk. `MinBlocks`: blocks a multiprocessor should hold, which bounds the registers.
template <class Number, int Blocks, int RowWarps, int ColumnWarps, int Depth, int Units1, int Units2, int Stages,
          int MinBlocks>
struct Tile {
  using T = Number;
  static constexpr int nblocks = Blocks, row_warps = RowWarps, column_warps = ColumnWarps, depth = Depth;
  static constexpr int units1 = Units1, units2 = Units2, stages = Stages, min_blocks = MinBlocks;
  static constexpr int threads = 32 * RowWarps * ColumnWarps;
  static constexpr int rows = kWarpRows * RowWarps;
  static constexpr int step2 = kUnit * ColumnWarps;  // the least that keeps all warps busy
  static constexpr int width1 = kUnit * ColumnWarps * Units1, width2 = step2 * Units2;
  static constexpr int stage1 = (rows + width1) * Depth, stage2 = Blocks * width2 * Depth;
  static constexpr int stage = stage1 > stage2 ? stage1 : stage2;  // elements of a buffer
  static constexpr int run = Blocks > 2 ? 2 * Blocks : 8;          // adjacent outputs of a lane
  static_assert(Blocks == 2 || Blocks == 4 || Blocks == 8);
  static_assert(Depth == 16 || Depth == 32);
  static_assert(threads % Depth == 0 && Units1 > 0 && Units2 > 0 && Stages >= 2 && Stages <= 4);
};

MW_DEVICE int min(int64_t a, int b) { return a < b ? static_cast<int>(a) : b; }

// The units of columns that a warp multiplies.
struct ColumnRange {
  int first;  // column
  int units;
};

// Deals `width` columns out evenly; a warp without rows gets none.
template <class C>
MW_DEVICE ColumnRange column_range(int column_warp, int width, bool active) {
  const int units = (width + kUnit - 1) / kUnit;
  const int per_warp = (units + C::column_warps - 1) / C::column_warps;
  const int first = column_warp * per_warp;
  const int mine = min(units - first, per_warp);
  return {first * kUnit, active && mine > 0 ? mine : 0};
}

// The swizzled offset of the 16-byte vector `vector` of a row in a chunk with rows `depth` long: an exclusive or, so
// that the same vector of 8 rows is in 8 different groups of banks. Rows 8 apart are swizzled alike.
template <class C>
MW_DEVICE int swizzled(int row, int vector) {
  constexpr int vectors = C::depth / 8;
  return row * C::depth + (vector ^ (row / (8 / vectors)) % vectors) * 8;
}

// Starts copying a chunk: `Blocks` times `Rows` rows, of which `present` exist, with `columns` columns of each. What
// else a warp may read becomes zeros. Addresses outside of the tensors are computed, but not read.
template <class C, int Blocks, int Rows>
MW_DEVICE void copy_chunk(typename C::T* to, const typename C::T* from, int block_stride, int row_stride, int present,
                          int columns) {
  constexpr int vectors = C::depth / 8, rows_at_once = C::threads / vectors;
  constexpr int blocks_at_once = rows_at_once > Rows ? rows_at_once / Rows : 1;
  static_assert(rows_at_once % Rows == 0 || Rows % rows_at_once == 0);
  // All threads together copy some rows, or some blocks, again and again; this thread's place in the first of them:
  const int place = thread_index() / vectors, vector = thread_index() % vectors;
  const int my_block = blocks_at_once > 1 ? place / Rows : 0, my_row = blocks_at_once > 1 ? place % Rows : place;
  const int needed = (present + kWarpRows - 1) / kWarpRows * kWarpRows;
  to += swizzled<C>(place, vector);
  from += my_block * block_stride + my_row * row_stride + vector * 8;
  // Pointers step on, because offsets from one pointer would be kept in a register pair each.
  const int64_t row_step = static_cast<int64_t>(rows_at_once) * row_stride;
  const int64_t block_step = static_cast<int64_t>(blocks_at_once) * block_stride;
  MW_UNROLL
  for (int block = 0; block < Blocks; block += blocks_at_once) {
    const auto* source = from;
    MW_UNROLL
    for (int row = 0; row < Rows; row += rows_at_once) {
      const bool valid = row + my_row < present && vector * 8 < columns;
      if (block + my_block < Blocks && row + my_row < needed)
        copy_async_16(to + (block * Rows + row) * C::depth, source, valid);
      source += row_step;
    }
    from += block_step;
  }
}

// A ring of buffers: chunk `current` is being multiplied, the next ones are under way. Chunks follow each other as the
// kernel's loops do: input block, columns of w1, depth; then columns of w2, depth.
template <class C>
class Chunks {
 public:
  using T = typename C::T;

  const int depth1, depth2;              // columns of depth of each phase
  const int first_column, last_column;  // the rows of w2 that are this block's

  // Starts the first copies. `first_row`, `rows`: of x, this block's.
  MW_DEVICE Chunks(const Problem& args, T* ring, int64_t first_row, int rows)
      : depth1((args.p + kUnit - 1) / kUnit * kUnit),
        depth2(C::nblocks * args.c),
        first_column(block_y() * args.split_columns),
        last_column(min(args.s - first_column, args.split_columns) + first_column),
        args_(args),
        ring_(ring),
        x_(static_cast<const T*>(args.x) + first_row * C::nblocks * args.p),
        rows_(rows) {
    for (int i = 0; i + 1 < args.stages; i++) copy_next();
  }

  MW_DEVICE const T* current() const { return ring_ + current_ * C::stage; }
  MW_DEVICE void advance() { current_ = following(current_); }

  // Waits until this thread's copies to the current chunk have landed.
  MW_DEVICE void wait() const {
    if (args_.stages == 4)
      copy_async_wait<2>();
    else if (args_.stages == 3)
      copy_async_wait<1>();
    else
      copy_async_wait<0>();
  }

  // Fills the buffer before the current one, which all warps must have left, with the next chunk.
  MW_DEVICE void copy_next() {
    if (block_ == C::nblocks) {
      copy_next_of_phase2();
      return;
    }
    const T* w1 = static_cast<const T*>(args_.w1) + static_cast<int64_t>(block_ * depth2 + column_) * depth1 + depth_;
    T* to = ring_ + free_ * C::stage;
    copy_chunk<C, 1, C::rows>(to, x_ + block_ * args_.p + depth_, 0, C::nblocks * args_.p, rows_, args_.p - depth_);
    copy_chunk<C, 1, C::width1>(to + C::rows * C::depth, w1, 0, depth1, min(depth2 - column_, C::width1),
                                depth1 - depth_);
    copied();
    depth_ += C::depth;
    if (depth_ < depth1) return;
    depth_ = 0;
    column_ += C::width1;
    if (column_ < depth2) return;
    block_++;
    column_ = block_ < C::nblocks ? 0 : first_column;
  }

  // The same once no chunk of phase 1 can be left. After the last chunk it copies nothing, which `wait` counts too.
  MW_DEVICE void copy_next_of_phase2() {
    if (column_ < last_column) {
      const T* w2 = static_cast<const T*>(args_.w2) + static_cast<int64_t>(column_) * depth2 + depth_;
      copy_chunk<C, C::nblocks, C::width2>(ring_ + free_ * C::stage, w2, args_.s * depth2, depth2,
                                           min(last_column - column_, C::width2), depth2 - depth_);
    }
    copied();
    depth_ += C::depth;
    if (depth_ < depth2) return;
    depth_ = 0;
    column_ += C::width2;
  }

 private:
  MW_DEVICE int following(int stage) const { return stage + 1 == args_.stages ? 0 : stage + 1; }
  MW_DEVICE void copied() {
    copy_async_commit();
    free_ = following(free_);
  }

  const Problem& args_;
  T* ring_;
  const T* x_;
  int rows_;
  int current_ = 0, free_ = 0;                // buffers
  int block_ = 0, column_ = 0, depth_ = 0;  // the next chunk to copy; block_ is nblocks in phase 2
};

}  // namespace linear
}  // namespace mw
