// Performer attention, first launch: sums phi(k) (x) [v, 1] over an image's tokens, cut into `splits` partial sums.
//
// A warp owns 16 features and walks over tokens. The features' product has features as rows and tokens as columns,
// so that its result is, in the same registers, the left operand of the product with the values: phi(k) is never
// stored. It is fp32 to the end: the features' matrix comes in exact terms, phi is split into bf16 hi and lo.
#pragma once
#include "performer/performer_args.cuh"

namespace mw {
namespace performer {

// `FeatureTiles`: a block's tiles of 16 features; `Groups`: warps that split them by tokens, `Tokens` of a stage each.
template <class Number, int Dim, int FeatureTiles, int Groups, int Tokens, int MinBlocks>
struct KvTile {
  using T = Number;
  static constexpr int dim = Dim, features = Dim / 2, feature_tiles = FeatureTiles, groups = Groups;
  static constexpr int group_tokens = Tokens, tokens = Groups * Tokens, min_blocks = MinBlocks;
  static constexpr int slices = features / 16 / feature_tiles;  // blocks that share an image's features
  static constexpr int warps = feature_tiles * groups, threads = 32 * warps;
  static constexpr int steps = Packed<T, dim>::steps, terms = kTerms<T>;
  // The features' matrix stays in registers, or else in shared memory.
  static constexpr bool in_registers = dim <= 96;
  static constexpr int weight_bytes = in_registers ? 0 : feature_tiles * Packed<T, dim>::feature_piece * kUnit * 2;
  // Keys are read 2 rows of 64 bytes at a time, values 8 rows of 16: the pitches put these in different banks.
  static constexpr int key_pitch = dim % 64 == 0 ? dim + 32 : dim, value_pitch = dim + 8;
  static constexpr int stages = 3, stage_size = tokens * (key_pitch + value_pitch);
  static constexpr int sum_pitch = feature_tiles * 16 + 4;
  static constexpr int stage_bytes = stages * stage_size * 2, sum_bytes = groups * (dim + 1) * sum_pitch * 4;
  static constexpr int offset_bytes = 2 * tokens * 4;
  static constexpr int shared_bytes =
      weight_bytes + offset_bytes + (stage_bytes > sum_bytes ? stage_bytes : sum_bytes);
  static_assert(dim % 32 == 0 && features % (16 * feature_tiles) == 0 && group_tokens % 16 == 0);
};

// One image's keys and values.
template <class C>
struct Keys {
  const typename C::T* first;
  int tokens;
};

// Starts copying the keys and values of a tile that begins at `token`; tokens past the last one become zeros.
template <class C>
MW_DEVICE void copy_tile(typename C::T* stage, const Keys<C>& source, int token) {
  constexpr int chunks = C::dim / 8;
  typename C::T* values = stage + C::tokens * C::key_pitch;
  if (token < source.tokens) {
    MW_NO_UNROLL
    for (int i = thread_index(); i < C::tokens * chunks; i += C::threads) {
      const int row = i / chunks, column = (i % chunks) * 8;
      const bool valid = token + row < source.tokens;
      const auto* key = source.first + (valid ? static_cast<int64_t>(token + row) * 3 * C::dim : 0) + column;
      copy_async_16(stage + row * C::key_pitch + column, key, valid);
      copy_async_16(values + row * C::value_pitch + column, key + 2 * C::dim, valid);
    }
  }
  copy_async_commit();
}

// Computes each token's offset in the exponent, four lanes a token; it is infinite past the last one: features 0.
template <class C>
MW_DEVICE void key_offsets(float* offsets, const typename C::T* keys, const Keys<C>& source, int token) {
  MW_NO_UNROLL
  for (int i = thread_index(); i < C::tokens * 4; i += C::threads) {
    const int row = i / 4;
    float square = 0.0f;
    MW_UNROLL
    for (int column = 0; column < C::dim; column += 32) {
      uint32_t key[4];
      load_shared_16(key, keys + row * C::key_pitch + column + (i % 4) * 8);
      MW_UNROLL
      for (int j = 0; j < 4; j++) square = add_squares<typename C::T>(square, key[j]);
    }
    square = quad_sum(square);
    const bool valid = token + row < source.tokens;
    constexpr float norm = Packed<typename C::T, C::dim>::half_log2_features;
    if (i % 4 == 0) offsets[row] = valid ? feature_offset(square, norm) : infinity();
  }
}

// The warp's 16 rows of the features' matrix as left operands.
template <class C>
struct FeatureRows {
  static constexpr int piece = Packed<typename C::T, C::dim>::feature_piece * kUnit;
  uint32_t in_registers[C::in_registers ? C::terms * C::steps : 1][4];
  const char* shared;

  // `global` points at the block's first feature tile. If it goes to shared memory, a barrier must follow.
  MW_DEVICE void load(const typename C::T* global, char* copy, int feature_tile) {
    if constexpr (C::in_registers) {
      MW_UNROLL
      for (int i = 0; i < C::terms * C::steps; i++) {
        load_16(in_registers[i], global + feature_tile * piece + i * kUnit + lane() * 8);
        swap_middle(in_registers[i]);
      }
    } else {
      shared = copy + feature_tile * piece * 2 + lane() * 16;
      for (int i = thread_index(); i < C::weight_bytes / 16; i += C::threads) {
        uint32_t word[4];
        load_16(word, global + i * 8);
        swap_middle(word);
        store_shared_16(copy + i * 16, word);
      }
    }
  }

  MW_DEVICE void get(uint32_t (&rows)[4], int term, int step) const {
    const int unit = term * C::steps + step;
    if constexpr (C::in_registers) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) rows[i] = in_registers[unit][i];
    } else {
      load_shared_16(rows, shared + unit * kUnit * 2);
    }
  }
};

// score[i] = features' rows * keys 8i..8i+7. A lane takes 8 neighbouring numbers of a key, so the 32 columns of two
// steps are in another order than in memory: the packed matrix has its columns in that order.
template <class C>
MW_DEVICE void add_scores(float (&score)[2][4], const FeatureRows<C>& features, const typename C::T* keys) {
  using T = typename C::T;
  const T* key_of_lane = keys + (lane() / 4) * C::key_pitch + (lane() % 4) * 8;
  MW_UNROLL
  for (int pair = 0; pair < C::steps / 2; pair++) {
    uint32_t key[2][4];
    MW_UNROLL
    for (int i = 0; i < 2; i++) load_shared_16(key[i], key_of_lane + i * 8 * C::key_pitch + pair * 32);
    MW_UNROLL
    for (int half = 0; half < 2; half++) {
      MW_UNROLL
      for (int term = 0; term < C::terms; term++) {
        uint32_t rows[4];
        features.get(rows, term, 2 * pair + half);
        MW_UNROLL
        for (int i = 0; i < 2; i++) mma_16x8x16<T>(score[i], rows, key[i][2 * half], key[i][2 * half + 1]);
      }
    }
  }
}

// sum[d] += phi * values 8d..8d+7 for 16 tokens; fp16 values are split into bf16 hi and lo, exactly.
template <class C>
MW_DEVICE void add_values(float (&sum)[C::dim / 8 + 1][4], const uint32_t (&hi)[4],
                          const uint32_t (&lo)[4], const typename C::T* values) {
  const auto* row = values + (lane() % 16) * C::value_pitch + (lane() / 16) * 8;
  MW_UNROLL
  for (int d = 0; d < C::dim / 8; d += 2) {
    uint32_t value[4], value_lo[4];
    ldmatrix_x4_trans(value, row + d * 8);
    if constexpr (!kIsBf16<typename C::T>) {
      sync_warp();  // keeps the compiler from loading many ahead: there are no registers for that
      MW_UNROLL
      for (int i = 0; i < 4; i++) {
        float low, high;
        unpack2<fp16>(value[i], low, high);
        split(low, high, value[i], value_lo[i]);
      }
    }
    MW_UNROLL
    for (int i = 0; i < 2; i++) mma_16x8x16<bf16>(sum[d + i], hi, value[2 * i], value[2 * i + 1]);
    MW_UNROLL
    for (int i = 0; i < 2; i++) mma_16x8x16<bf16>(sum[d + i], lo, value[2 * i], value[2 * i + 1]);
    if constexpr (!kIsBf16<typename C::T>) {
      MW_UNROLL
      for (int i = 0; i < 2; i++) mma_16x8x16<bf16>(sum[d + i], hi, value_lo[2 * i], value_lo[2 * i + 1]);
    }
  }
  // The column of ones beside the values, which gives the sum of the features themselves.
  const uint32_t ones = lane() / 4 == 0 ? pack2<bf16>(1.0f, 1.0f) : 0u;
  mma_16x8x16<bf16>(sum[C::dim / 8], hi, ones, ones);
  mma_16x8x16<bf16>(sum[C::dim / 8], lo, ones, ones);
}

// Adds this warp's tokens of a tile.
template <class C>
MW_DEVICE void add_tile(float (&sum)[C::dim / 8 + 1][4], const FeatureRows<C>& features, const typename C::T* stage,
                        const float* offsets, int group) {
  const auto* values = stage + C::tokens * C::key_pitch;
  MW_NO_UNROLL
  for (int i = 0; i < C::group_tokens; i += 16) {
    const int first = group * C::group_tokens + i;
    float score[2][4] = {};
    add_scores<C>(score, features, stage + first * C::key_pitch);
    uint32_t hi[4], lo[4];
    MW_UNROLL
    for (int j = 0; j < 2; j++) {
      const Float2 offset = *reinterpret_cast<const Float2*>(offsets + first + j * 8 + 2 * (lane() % 4));
      MW_UNROLL
      for (int row = 0; row < 2; row++) {
        const float low = exp2_approx(score[j][2 * row] - offset.v[0]);
        const float high = exp2_approx(score[j][2 * row + 1] - offset.v[1]);
        split(low, high, hi[2 * j + row], lo[2 * j + row]);
      }
    }
    add_values<C>(sum, hi, lo, values + first * C::value_pitch);
  }
}

// Writes a warp's sums to shared memory: (dim + 1, features), the values' columns as rows.
template <class C>
MW_DEVICE void stage_sums(float* to, const float (&sum)[C::dim / 8 + 1][4], int feature_tile) {
  float* column = to + feature_tile * 16 + lane() / 4;
  MW_UNROLL
  for (int d = 0; d <= C::dim / 8; d++) {
    MW_UNROLL
    for (int i = 0; i < 4; i++) {
      const int row = d * 8 + 2 * (lane() % 4) + i % 2;
      if (row <= C::dim) column[row * C::sum_pitch + (i / 2) * 8] = sum[d][i];
    }
  }
}

// Adds the groups' sums in their order and writes them to the workspace: (image, split, dim + 1, features).
template <class C>
MW_DEVICE void store_sums(float* to, const float* from) {
  constexpr int quarters = C::feature_tiles * 4;
  for (int i = thread_index(); i < (C::dim + 1) * quarters; i += C::threads) {
    const int row = i / quarters, column = (i % quarters) * 4;
    Float4 total = {};
    MW_UNROLL
    for (int group = 0; group < C::groups; group++) {
      const auto part =
          *reinterpret_cast<const Float4*>(from + (group * (C::dim + 1) + row) * C::sum_pitch + column);
      MW_UNROLL
      for (int j = 0; j < 4; j++) total.v[j] += part.v[j];
    }
    uint32_t word[4];
    MW_UNROLL
    for (int j = 0; j < 4; j++) word[j] = __builtin_bit_cast(uint32_t, total.v[j]);
    store_16(to + row * C::features + column, word);
  }
}

// Grid (splits, images, slices of the features).
template <class C>
MW_GLOBAL(C::threads, C::min_blocks) performer_kv(const PerformerArgs args) {
  using T = typename C::T;
  wait_on_dependent_grids();
  char* weight_copy = shared_memory();
  float* offsets = reinterpret_cast<float*>(weight_copy + C::weight_bytes);
  T* stages = reinterpret_cast<T*>(weight_copy + C::weight_bytes + C::offset_bytes);
  const int feature_tile = warp() % C::feature_tiles, group = warp() / C::feature_tiles;
  const int64_t image = block_y();
  const Keys<C> keys{static_cast<const T*>(args.kqv) + image * args.tokens * 3 * C::dim, args.tokens};
  int token = block_x() * C::tokens;  // this block's tiles are `splits` apart
  const int stride = args.splits * C::tokens;
  const int slice = block_z() * C::feature_tiles;

  FeatureRows<C> features;
  features.load(static_cast<const T*>(args.weights) + slice * Packed<T, C::dim>::feature_piece * kUnit, weight_copy,
                feature_tile);
  copy_tile(stages, keys, token);
  copy_tile(stages + C::stage_size, keys, token + stride);
  copy_async_wait<1>();  // sync: first tile wait
  sync_block();          // sync: first tile barrier
  key_offsets(offsets, stages, keys, token);

  float sum[C::dim / 8 + 1][4] = {};
  int stage = 0, parity = 0;
  MW_NO_UNROLL
  for (; token < args.tokens; token += stride) {
    const int next = stage + 1 == C::stages ? 0 : stage + 1, last = next + 1 == C::stages ? 0 : next + 1;
    copy_async_wait<0>();  // sync: next tile wait
    sync_block();          // sync: next tile barrier
    copy_tile(stages + last * C::stage_size, keys, token + 2 * stride);
    if (token + stride < args.tokens)
      key_offsets(offsets + (1 - parity) * C::tokens, stages + next * C::stage_size, keys, token + stride);
    add_tile<C>(sum, features, stages + stage * C::stage_size, offsets + parity * C::tokens, group);
    stage = next;
    parity = 1 - parity;
  }

  launch_dependent_grids();
  float* sums = reinterpret_cast<float*>(stages);
  sync_block();  // sync: stages are free
  stage_sums<C>(sums + group * (C::dim + 1) * C::sum_pitch, sum, feature_tile);
  sync_block();  // sync: sums are there
  float* partial = args.partial + (image * args.splits + block_x()) * (C::dim + 1) * C::features;
  store_sums<C>(partial + slice * 16, sums);
}

}  // namespace performer
}  // namespace mw
