// Performer attention, second launch: a warp's rows of tokens between memory and registers, 16 bytes a lane.
//
// Four lanes share a row. Of every 32 columns, lane t reads 8t .. 8t+7 from memory. An mma takes these as the lane's
// four pairs, which belong to columns 8 apart there; the packed weights are permuted to match.
#pragma once
#include "performer/performer_weights.cuh"

namespace mw {
namespace performer {

// A lane's part of 16 * RowTiles rows: rows lane/4 and lane/4 + 8 of each 16, and of every 32 columns 8 neighbours.
template <class C>
struct Rows {
  int first, tokens;

  MW_DEVICE bool valid(int tile, int half) const { return first + at(tile, half) + lane() / 4 < tokens; }
  // Where the lane's first row is, and how far the others are from it: compile-time constants, which need no register.
  MW_DEVICE int64_t start(int stride) const { return int64_t{first + lane() / 4} * stride + lane() % 4 * 8; }
  static MW_DEVICE int at(int tile, int half) { return tile * 16 + half * 8; }
};

// Loads eight numbers, or zeros if there is no such row.
MW_DEVICE void load_valid(uint32_t (&word)[4], const void* from, bool valid) {
  MW_UNROLL
  for (int i = 0; i < 4; i++) word[i] = 0;
  if (valid) load_16(word, from);
}

template <class C>
using Accumulators = float[C::row_tiles][C::columns][4];
template <class C>
using Operands = uint32_t[C::row_tiles][C::steps][4];

// Queries as left operands, and each row's offset in the exponent.
//
// An operand has words of two loads. The compiler would keep the loads and mix them again before every product.
template <class C>
MW_DEVICE void load_queries(Operands<C>& query, float (&offset)[C::row_tiles][2], const Rows<C>& rows,
                            const typename C::T* queries) {
  const uint32_t zero = static_cast<uint32_t>(opaque_zero(rows.tokens));
  const auto* start = queries + rows.start(3 * C::dim);
  MW_UNROLL
  for (int tile = 0; tile < C::row_tiles; tile++) {
    MW_UNROLL
    for (int half = 0; half < 2; half++) {
      float square = 0.0f;
      MW_UNROLL
      for (int block = 0; block < C::dim / 32; block++) {
        uint32_t word[4];
        load_valid(word, start + rows.at(tile, half) * 3 * C::dim + block * 32, rows.valid(tile, half));
        MW_UNROLL
        for (int i = 0; i < 4; i++) {
          query[tile][2 * block + i / 2][half + i % 2 * 2] = word[i] ^ zero;
          square = add_squares<typename C::T>(square, word[i]);
        }
      }
      offset[tile][half] = feature_offset(quad_sum(square), C::Layout::half_log2_features);
    }
  }
}

// The lane's 8 of 32 columns, for each of its rows, as they are in memory.
template <class C>
struct Columns {
  uint32_t word[C::row_tiles][2][4];

  template <int Stride>
  MW_DEVICE void load(const Rows<C>& rows, const typename C::T* from) {
    const auto* start = from + rows.start(Stride);
    MW_UNROLL
    for (int tile = 0; tile < C::row_tiles; tile++) {
      MW_UNROLL
      for (int half = 0; half < 2; half++)
        load_valid(word[tile][half], start + rows.at(tile, half) * Stride, rows.valid(tile, half));
    }
  }

  // Returns the pair that belongs into x[tile][4 * block + i], half 0 or 1.
  MW_DEVICE Float2 get(int tile, int half, int i) const {
    Float2 pair;
    unpack2<typename C::T>(word[tile][half][i], pair.v[0], pair.v[1]);
    return pair;
  }
};

// Returns the lane's pair of a bias in the order of `Columns`.
MW_DEVICE Float2 bias_pair(const float* bias, int block, int i) {
  return *reinterpret_cast<const Float2*>(bias + block * 32 + lane() % 4 * 8 + 2 * i);
}

template <class C>
MW_DEVICE void add_bias(Accumulators<C>& x, const float* bias) {
  MW_UNROLL
  for (int column = 0; column < C::columns; column++) {
    const Float2 pair = bias_pair(bias, column / 4, column % 4);
    MW_UNROLL
    for (int i = 0; i < C::row_tiles * 4; i++) x[i / 4][column][i % 4] += i % 2 == 0 ? pair.v[0] : pair.v[1];
  }
}

// Writes x, rounded once.
template <class C>
MW_DEVICE void store_rows(typename C::T* out, const Rows<C>& rows, const Accumulators<C>& x) {
  auto* start = out + rows.start(C::dim);
  MW_UNROLL
  for (int tile = 0; tile < C::row_tiles; tile++) {
    MW_UNROLL
    for (int half = 0; half < 2; half++) {
      MW_UNROLL
      for (int block = 0; block < C::dim / 32; block++) {
        uint32_t word[4];
        MW_UNROLL
        for (int i = 0; i < 4; i++) {
          const float* pair = &x[tile][4 * block + i][2 * half];
          word[i] = pack2<typename C::T>(pair[0], pair[1]);
        }
        if (rows.valid(tile, half)) store_16(start + rows.at(tile, half) * C::dim + block * 32, word);
      }
    }
  }
}

}  // namespace performer
}  // namespace mw
