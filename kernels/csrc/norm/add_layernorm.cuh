// A residual's addition and the layer norm behind it in one launch: sums = x + residual, norms = LayerNorm(sums).
//
// A warp has a row, all of it in registers, so memory is read once and written once, 16 bytes a lane. The norm is of
// the sums before they are rounded. Statistics are float32, and the mean is subtracted before squaring: a row's offset
// does not cost its digits. Rows never meet, and neither do their NaN.
#pragma once
#include "primitives.cuh"

namespace mw {

struct AddLayernormArgs {
  const void* x;         // (rows, width), 16-byte aligned like the others
  const void* residual;  // (rows, width)
  const float* weight;   // (width,)
  const float* bias;     // (width,)
  void* sums;            // (rows, width)
  void* norms;           // (rows, width)
  int rows, width;
  float eps;
};

namespace norm {

constexpr int kWarps = 4;                // of a block: rows at a time
constexpr int kVector = 8;               // numbers of an access
constexpr int kPiece = 32 * kVector;     // numbers of a warp's access
constexpr int kMaxWidth = 4 * kPiece;    // as many as there are registers for

// One row of a warp: a lane has 8 neighbours of every 256 columns, and zeros past the row's end.
template <class T, int Pieces>
struct Row {
  float value[Pieces][kVector];
  int width;

  MW_DEVICE static int column(int piece) { return piece * kPiece + lane() * kVector; }

  MW_DEVICE void load_sum(const T* x, const T* residual) {
    uint32_t left[Pieces][4] = {}, right[Pieces][4] = {};
    MW_UNROLL
    for (int piece = 0; piece < Pieces; piece++) {
      if (column(piece) >= width) continue;
      load_16(left[piece], x + column(piece));
      load_16(right[piece], residual + column(piece));
    }
    MW_UNROLL
    for (int i = 0; i < Pieces * 4; i++) {
      float low, high, other_low, other_high;
      unpack2<T>(left[i / 4][i % 4], low, high);
      unpack2<T>(right[i / 4][i % 4], other_low, other_high);
      value[i / 4][i % 4 * 2] = low + other_low;
      value[i / 4][i % 4 * 2 + 1] = high + other_high;
    }
  }

  MW_DEVICE void store(T* to) const {
    MW_UNROLL
    for (int piece = 0; piece < Pieces; piece++) {
      uint32_t word[4];
      MW_UNROLL
      for (int i = 0; i < 4; i++) word[i] = pack2<T>(value[piece][2 * i], value[piece][2 * i + 1]);
      if (column(piece) < width) store_16(to + column(piece), word);
    }
  }

  MW_DEVICE void normalise(const float* weight, const float* bias, float eps) {
    const float count = static_cast<float>(width);
    float sum = 0.0f, squares = 0.0f;
    MW_UNROLL
    for (int i = 0; i < Pieces * kVector; i++) sum += value[i / kVector][i % kVector];
    const float mean = warp_sum(sum) / count;
    MW_UNROLL
    for (int i = 0; i < Pieces * kVector; i++) {
      const float centred = value[i / kVector][i % kVector] -= mean;
      if (column(i / kVector) < width) squares = fmaf(centred, centred, squares);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / count + eps);
    MW_UNROLL
    for (int i = 0; i < Pieces * 2; i++) {
      const int first = column(i / 2) + i % 2 * 4;
      if (first >= width) continue;
      uint32_t by[4], shift[4];
      load_16(by, weight + first);
      load_16(shift, bias + first);
      MW_UNROLL
      for (int j = 0; j < 4; j++) {
        float& number = value[i / 2][i % 2 * 4 + j];
        number = fmaf(number * scale, __builtin_bit_cast(float, by[j]), __builtin_bit_cast(float, shift[j]));
      }
    }
  }
};

template <class T, int Pieces>
MW_GLOBAL(32 * kWarps, 1) add_layernorm(const AddLayernormArgs args) {
  wait_on_dependent_grids();
  const int64_t index = static_cast<int64_t>(block_x()) * kWarps + warp();
  if (index >= args.rows) return;
  const int64_t first = index * args.width;
  Row<T, Pieces> row;
  row.width = args.width;
  row.load_sum(static_cast<const T*>(args.x) + first, static_cast<const T*>(args.residual) + first);
  launch_dependent_grids();
  row.store(static_cast<T*>(args.sums) + first);
  row.normalise(args.weight, args.bias, args.eps);
  row.store(static_cast<T*>(args.norms) + first);
}

template <class T>
const char* launch_dtype(const AddLayernormArgs& args, Stream stream) {
  const dim3 grid(static_cast<unsigned>((static_cast<int64_t>(args.rows) + kWarps - 1) / kWarps));
  switch ((args.width + kPiece - 1) / kPiece) {
    case 1: return launch<add_layernorm<T, 1>>(grid, 32 * kWarps, 0, stream, args);
    case 2: return launch<add_layernorm<T, 2>>(grid, 32 * kWarps, 0, stream, args);
    case 3: return launch<add_layernorm<T, 3>>(grid, 32 * kWarps, 0, stream, args);
    default: return launch<add_layernorm<T, 4>>(grid, 32 * kWarps, 0, stream, args);
  }
}

}  // namespace norm

// Returns nullptr, or why nothing was launched.
inline const char* add_layernorm_launch(DType dtype, const AddLayernormArgs& args, Stream stream) {
  if (args.rows < 0) return "add_layernorm: negative number of rows";
  if (args.width < 1 || args.width > norm::kMaxWidth || args.width % norm::kVector != 0)
    return "add_layernorm: the width must be a multiple of 8, at most 1024";
  if (!(args.eps >= 0.0f)) return "add_layernorm: eps is negative";
  if (misaligned(args.x, args.residual, args.weight, args.bias, args.sums, args.norms))
    return "add_layernorm: tensors must be 16-byte aligned";
  if (args.rows == 0) return nullptr;
  return dtype == DType::bf16 ? norm::launch_dtype<bf16>(args, stream) : norm::launch_dtype<fp16>(args, stream);
}

}  // namespace mw
