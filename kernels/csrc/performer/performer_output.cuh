// Performer attention, second launch: phi(q) times the sums over keys, the projection, the skips and the MLP, in registers.
//
// A warp owns rows of queries from the first product to the last: every product's result is, in the same registers,
// the next one's left operand, and activations are read and written 16 bytes a lane without passing through shared
// memory.
#pragma once
#include "performer/performer_rows.cuh"

namespace mw {
namespace performer {

// Four numbers of one column as words of the right operands of two neighbouring lanes.
MW_DEVICE void split_pairs(uint32_t* word, const Float4& values) {
  MW_UNROLL
  for (int i = 0; i < 2; i++) {
    uint32_t hi, lo;
    split(values.v[2 * i], values.v[2 * i + 1], hi, lo);
    word[4 * i] = hi;
    word[4 * i + 2] = lo;
  }
}

// Adds the partial sums of an image in their order and stores them as right operands: bf16 hi and lo.
template <class C>
MW_DEVICE void load_kv(uint32_t* fragments, const float* partial, int splits) {
  constexpr int quarters = C::features / 4, size = (C::dim + 1) * C::features;
  for (int i = thread_index(); i < (C::dim + 1) * quarters; i += C::threads) {
    Float4 total = {};
    for (int split = 0; split < splits; split++) {
      const auto part = *reinterpret_cast<const Float4*>(partial + split * size + i * 4);
      MW_UNROLL
      for (int j = 0; j < 4; j++) total.v[j] += part.v[j];
    }
    // Four features of one column: two neighbouring lanes' pairs.
    const int column = i / quarters, feature = (i % quarters) * 4;
    uint32_t* tile = fragments + (feature / 16 * (C::columns + 1) + column / 8) * 128;
    uint32_t* word = tile + (column % 8 * 4 + feature % 8 / 2) * 4 + feature % 16 / 8;
    split_pairs(word, total);
  }
  constexpr int unused = 28 * 4;  // words of the last tile's lanes whose column is not the features' sum
  for (int i = thread_index(); i < C::Layout::feature_tiles * unused; i += C::threads) {
    const int tile = i / unused * (C::columns + 1) + C::columns;
    fragments[tile * 128 + 16 + i % unused] = 0;
  }
}

// out[.][2i], out[.][2i + 1] += rows * units i, over `Steps` steps.
template <class C, int Steps, int Units, int Columns, int Held>
MW_DEVICE void multiply(float (&out)[C::row_tiles][Columns][4], int first_column,
                        const uint32_t (&rows)[C::row_tiles][Held][4], const char* units) {
  MW_UNROLL
  for (int unit = 0; unit < Units; unit++) {
    MW_UNROLL
    for (int step = 0; step < Steps; step++) {
      uint32_t word[4];
      load_shared_16(word, units + (unit * Steps + step) * C::unit_bytes + lane() * 16);
      MW_UNROLL
      for (int tile = 0; tile < C::row_tiles; tile++) {
        const int column = first_column + 2 * unit;
        mma_16x8x16<typename C::T>(out[tile][column], rows[tile][step], word[0], word[1]);
        mma_16x8x16<typename C::T>(out[tile][column + 1], rows[tile][step], word[2], word[3]);
      }
    }
  }
}

// sum += phi(q) kv, 16 features at a time.
template <class C>
MW_DEVICE void attend(float (&sum)[C::row_tiles][C::columns + 1][4], const Operands<C>& query,
                      const float (&offset)[C::row_tiles][2], const Weights<C>& weights, const uint32_t* kv) {
  MW_NO_UNROLL
  for (int piece = 0; piece < C::Layout::feature_tiles; piece++) {
    const char* features = weights.piece(piece);
    float score[C::row_tiles][2][4] = {};
    MW_UNROLL
    for (int term = 0; term < C::terms; term++)
      multiply<C, C::steps, 1>(score, 0, query, features + term * C::steps * C::unit_bytes);
    uint32_t hi[C::row_tiles][4], lo[C::row_tiles][4];
    MW_UNROLL
    for (int tile = 0; tile < C::row_tiles; tile++) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        const float* pair = &score[tile][i / 2][2 * (i % 2)];
        const float low = exp2_approx(pair[0] - offset[tile][i % 2]);
        const float high = exp2_approx(pair[1] - offset[tile][i % 2]);
        split(low, high, hi[tile][i], lo[tile][i]);
      }
    }
    const uint32_t* fragment = kv + (piece * (C::columns + 1) * 32 + lane()) * 4;
    MW_UNROLL
    for (int column = 0; column <= C::columns; column++) {
      uint32_t word[4];
      load_shared_16(word, fragment + column * 128);
      MW_UNROLL
      for (int tile = 0; tile < C::row_tiles; tile++) {
        mma_16x8x16<bf16>(sum[tile][column], hi[tile], word[0], word[1]);
        mma_16x8x16<bf16>(sum[tile][column], lo[tile], word[0], word[1]);
        mma_16x8x16<bf16>(sum[tile][column], hi[tile], word[2], word[3]);
      }
    }
  }
}

// y = sum / (features' sum + eps) as left operands: the last column tile holds one number a row, and zeros.
template <class C>
MW_DEVICE void normalise(Operands<C>& y, const float (&sum)[C::row_tiles][C::columns + 1][4], float eps) {
  MW_UNROLL
  for (int tile = 0; tile < C::row_tiles; tile++) {
    float factor[2];
    MW_UNROLL
    for (int half = 0; half < 2; half++) {
      const float* last = &sum[tile][C::columns][2 * half];
      factor[half] = 1.0f / (quad_sum(last[0] + last[1]) + eps);
    }
    MW_UNROLL
    for (int step = 0; step < C::steps; step++) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        const float* pair = &sum[tile][2 * step + i / 2][2 * (i % 2)];
        y[tile][step][i] = pack2<typename C::T>(pair[0] * factor[i % 2], pair[1] * factor[i % 2]);
      }
    }
  }
}

// x = v + parallel + proj(y), 32 columns at a time; what the next 32 need is loaded meanwhile.
template <class C>
MW_DEVICE void project(Accumulators<C>& x, const Operands<C>& y, const Weights<C>& weights, const Rows<C>& rows,
                       const typename C::T* values, const typename C::T* parallel, const float* bias) {
  Columns<C> value, beside = {};
  value.template load<3 * C::dim>(rows, values);
  if (parallel != nullptr) beside.template load<C::dim>(rows, parallel);
  MW_UNROLL
  for (int block = 0; block < C::Layout::dense_pieces; block++) {
    const char* units = weights.piece(C::Layout::feature_tiles + block);
    MW_UNROLL
    for (int i = 0; i < 4; i++) {
      const Float2 shift = bias_pair(bias, block, i);
      MW_UNROLL
      for (int j = 0; j < C::row_tiles * 2; j++) {
        const Float2 v = value.get(j / 2, j % 2, i), p = beside.get(j / 2, j % 2, i);
        x[j / 2][4 * block + i][j % 2 * 2] = v.v[0] + p.v[0] + shift.v[0];
        x[j / 2][4 * block + i][j % 2 * 2 + 1] = v.v[1] + p.v[1] + shift.v[1];
      }
    }
    if (block + 1 < C::Layout::dense_pieces) {
      value.template load<3 * C::dim>(rows, values + (block + 1) * 32);
      if (parallel != nullptr) beside.template load<C::dim>(rows, parallel + (block + 1) * 32);
    }
    multiply<C, C::steps, 2>(x, 4 * block, y, units);
  }
}

// (x - mean) / deviation as left operands; the norm's weight and bias are in fc1.
template <class C>
MW_DEVICE void layer_norm(Operands<C>& z, const Accumulators<C>& x, float eps) {
  MW_UNROLL
  for (int tile = 0; tile < C::row_tiles; tile++) {
    float mean[2] = {}, square[2] = {}, factor[2];
    MW_UNROLL
    for (int half = 0; half < 2; half++) {
      MW_UNROLL
      for (int i = 0; i < C::columns * 2; i++) mean[half] += x[tile][i / 2][2 * half + i % 2];
      mean[half] = quad_sum(mean[half]) * (1.0f / C::dim);
      MW_UNROLL
      for (int i = 0; i < C::columns * 2; i++) {
        const float centred = x[tile][i / 2][2 * half + i % 2] - mean[half];
        square[half] = fmaf(centred, centred, square[half]);
      }
      factor[half] = reciprocal_approx(sqrtf(fmaf(quad_sum(square[half]), 1.0f / C::dim, eps)));
    }
    MW_UNROLL
    for (int step = 0; step < C::steps; step++) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        const float* pair = &x[tile][2 * step + i / 2][2 * (i % 2)];
        z[tile][step][i] = pack2<typename C::T>((pair[0] - mean[i % 2]) * factor[i % 2],
                                                (pair[1] - mean[i % 2]) * factor[i % 2]);
      }
    }
  }
}

// x += fc2(gelu(fc1(z))), 16 hidden columns at a time.
template <class C>
MW_DEVICE void add_mlp(Accumulators<C>& x, const Operands<C>& z, const Weights<C>& weights, const float* hidden_bias) {
  using T = typename C::T;
  MW_NO_UNROLL
  for (int block = 0; block < C::Layout::mlp_pieces; block++) {
    const char* units = weights.piece(C::Layout::pieces_without_mlp + block);
    float hidden[C::row_tiles][2][4];
    MW_UNROLL
    for (int i = 0; i < 2; i++) {
      const Float2 pair = *reinterpret_cast<const Float2*>(hidden_bias + block * 16 + i * 8 + lane() % 4 * 2);
      MW_UNROLL
      for (int tile = 0; tile < C::row_tiles; tile++) {
        hidden[tile][i][0] = hidden[tile][i][2] = pair.v[0];
        hidden[tile][i][1] = hidden[tile][i][3] = pair.v[1];
      }
    }
    multiply<C, C::steps, 1>(hidden, 0, z, units);
    uint32_t active[C::row_tiles][1][4];
    MW_UNROLL
    for (int tile = 0; tile < C::row_tiles; tile++) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        const float* pair = &hidden[tile][i / 2][2 * (i % 2)];
        active[tile][0][i] = pack2<T>(gelu<T>(pair[0]), gelu<T>(pair[1]));
      }
    }
    multiply<C, 1, C::steps>(x, 0, active, units + C::steps * C::unit_bytes);
  }
}

// Computes one warp's rows from queries to output; `first` is the first row of the block.
template <class C>
MW_DEVICE void transform_rows(const PerformerArgs& args, int first, const Weights<C>& weights,
                              const uint32_t* kv, const float* biases) {
  using T = typename C::T;
  const int64_t before = static_cast<int64_t>(block_y()) * args.tokens * C::dim;  // numbers of earlier images
  const T* kqv = static_cast<const T*>(args.kqv) + 3 * before;
  const Rows<C> rows{first + warp() * C::warp_rows, args.tokens};
  Operands<C> operand;  // the queries, then y, then z
  float sum[C::row_tiles][C::columns + 1][4] = {};
  float offset[C::row_tiles][2];
  load_queries<C>(operand, offset, rows, kqv + C::dim);
  attend<C>(sum, operand, offset, weights, kv);
  normalise<C>(operand, sum, args.eps);
  Accumulators<C> x;
  const T* parallel = args.parallel == nullptr ? nullptr : static_cast<const T*>(args.parallel) + before;
  project<C>(x, operand, weights, rows, kqv + 2 * C::dim, parallel, biases);
  if constexpr (C::mlp) {
    layer_norm<C>(operand, x, args.norm_eps);
    add_bias<C>(x, biases + 2 * C::dim);
    add_mlp<C>(x, operand, weights, biases + C::dim);
  }
  // The same rows, computed again, since width 192 has no registers to keep them in.
  const Rows<C> again{first + (warp() ^ opaque_zero(args.tokens)) * C::warp_rows, args.tokens};
  store_rows<C>(static_cast<T*>(args.out) + before, again, x);
}

// Grid (chunks, images): a block takes every chunks-th set of its warps' rows.
template <class C>
MW_GLOBAL(C::threads, C::min_blocks) performer_output(const PerformerArgs args) {
  wait_on_dependent_grids();
  char* shared = shared_memory();
  uint32_t* kv = reinterpret_cast<uint32_t*>(shared + C::weight_bytes);
  float* biases = reinterpret_cast<float*>(shared + C::weight_bytes + C::kv_bytes);
  const int64_t image = block_y();
  for (int i = thread_index(); i < C::bias_rows * C::dim; i += C::threads) biases[i] = args.biases[i];
  Weights<C> weights{static_cast<const char*>(args.weights), shared};
  weights.start();
  load_kv<C>(kv, args.partial + image * args.splits * (C::dim + 1) * C::features, args.splits);
  if constexpr (C::stages == 0) weights.wait_for_all();
  launch_dependent_grids();
  constexpr int block_rows = C::warps * C::warp_rows;
  const int stride = grid_x() * block_rows;
  MW_NO_UNROLL
  for (int first = block_x() * block_rows; first < args.tokens; first += stride) {
    weights.again = first + stride < args.tokens;
    transform_rows<C>(args, first, weights, kv, biases);
  }
}

}  // namespace performer
}  // namespace mw
