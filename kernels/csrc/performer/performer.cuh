// The performer attention of ViTAE's and T2T-ViT's reduction cells: two launches from the kqv product to the cell's
// end.
//
//   phi(t) = exp(w t - |t|^2 / 2) / sqrt(m),  y_t = phi(q_t) S / (phi(q_t) s + eps)      (Performer, arXiv 2009.14794)
//   x = v + proj(y) + parallel,  out = x + fc2(gelu(fc1(norm(x))))                       (the last part optional)
//
// with S = sum phi(k) (x) v and s = sum phi(k) over the image's tokens. The features span e^-30 to e^48 and their sums
// cancel against each other, so all of this is fp32 in effect, on two-byte tensor cores: the features' matrix is an
// exact sum of two or three two-byte terms, phi and S are split into bf16 hi and lo (16 bits), sums are fp32. y is
// rounded to T before the projection, the normed x and the hidden activations before theirs; x itself never is.
//
// An image's NaN stays in that image, a query's in its row. Workspace is summed in a fixed order: results are the same
// from run to run, and in the last bits depend on `splits`.
#pragma once
#include "performer/performer_output.cuh"
#include "performer/performer_kv.cuh"

namespace mw {

namespace performer {

// Shared memory of a block on sm_80 and, less than that, on sm_86, sm_89 and sm_120.
constexpr int kLargeShared = 163 * 1024, kSmallShared = 99 * 1024;

template <class S, class O, int max_shared>
const char* launch_both(const PerformerArgs& args, Stream stream) {
  static_assert(S::shared_bytes <= max_shared && O::shared_bytes <= max_shared);
  if (S::shared_bytes > args.shared_limit || O::shared_bytes > args.shared_limit)
    return "performer: the tile needs more shared memory than there is";
  const unsigned images = static_cast<unsigned>(args.images);
  const dim3 kv_grid(static_cast<unsigned>(args.splits), images, S::slices);
  const char* error = launch<performer_kv<S>>(kv_grid, S::threads, S::shared_bytes, stream, args);
  if (error != nullptr) return error;
  // As many blocks as the device holds at once, but not more than there are sets of rows.
  constexpr int rows = O::warps * O::warp_rows;
  const int sets = (args.tokens + rows - 1) / rows;
  const int resident = (args.multiprocessors * O::min_blocks + args.images - 1) / args.images;
  const unsigned chunks = static_cast<unsigned>(resident < 1 ? 1 : resident < sets ? resident : sets);
  return launch<performer_output<O>>(dim3(chunks, images), O::threads, O::shared_bytes, stream, args);
}

// The widest tiles that spill no register on sm_80 to sm_90a and sm_120a. fp16 needs more: its values are split in two.
template <class T, bool Mlp>
const char* launch_shape(int tile, const PerformerArgs& args, Stream stream) {
  constexpr bool lean = kIsBf16<T>;
  using Kv32 = KvTile<T, 32, 1, 4, 32, 2>;
  using Kv64 = KvTile<T, 64, 2, lean ? 4 : 3, 16, 2>;
  using Kv96 = KvTile<T, 96, 3, 2, 32, lean ? 2 : 1>;
  if (tile == 0) {
    switch (args.dim) {
      case 32: return launch_both<Kv32, OutputTile<T, 32, Mlp, 2, 4, 0, 3>, kLargeShared>(args, stream);
      case 64:
        return launch_both<Kv64, OutputTile<T, 64, Mlp, 2, 4, 0, 2>, kLargeShared>(args, stream);
      case 96:
        return launch_both<Kv96, OutputTile<T, 96, Mlp, lean ? 2 : 1, lean ? 4 : 6, 0, 2>, kLargeShared>(args,
                                                                                                             stream);
      case 192:
        return launch_both<KvTile<T, 192, 3, 2, 16, 1>, OutputTile<T, 192, Mlp, 1, 8, 3, 1>, kLargeShared>(args,
                                                                                                                stream);
    }
  } else {
    switch (args.dim) {
      case 32: return launch_both<Kv32, OutputTile<T, 32, Mlp, 1, 4, 0, 4>, kSmallShared>(args, stream);
      case 64: return launch_both<Kv64, OutputTile<T, 64, Mlp, 1, 4, 0, 4>, kSmallShared>(args, stream);
      case 96: return launch_both<Kv96, OutputTile<T, 96, Mlp, 1, 6, 3, 2>, kSmallShared>(args, stream);
      case 192:
        return launch_both<KvTile<T, 192, 3, 1, 16, 1>, OutputTile<T, 192, Mlp, 1, 8, 1, 1>, kSmallShared>(args,
                                                                                                                stream);
    }
  }
  return "performer: the width must be 32, 64, 96 or 192";
}

template <class T>
const char* launch_dtype(int tile, const PerformerArgs& args, Stream stream) {
  return args.mlp ? launch_shape<T, true>(tile, args, stream) : launch_shape<T, false>(tile, args, stream);
}

}  // namespace performer

// Tile variants, the default first: 0 is for devices with kLargeShared, 1 for all; it has fewer rows to a warp.
inline int performer_tiles() { return 2; }

// The number of parts that an image's keys are split into: enough blocks for the device, at least 128 tokens each, and
// at most 16 parts, because every block of the second launch adds them up.
inline int performer_splits(int images, int tokens, int multiprocessors) {
  const int max_splits = tokens / 128 < 16 ? tokens / 128 : 16;
  const int filling = images < 1 ? 1 : (2 * multiprocessors + images - 1) / images;
  const int splits = filling < max_splits ? filling : max_splits;
  return splits < 1 ? 1 : splits;
}

// Size of the workspace in floats: (images, splits, dim + 1, dim / 2).
inline int64_t performer_workspace(int images, int dim, int splits) {
  return static_cast<int64_t>(images) * splits * (dim + 1) * (dim / 2);
}

// Number of elements of `weights`.
inline int64_t performer_weights(DType dtype, int dim, bool mlp) {
  const int terms = dtype == DType::bf16 ? performer::kTerms<bf16> : performer::kTerms<fp16>;
  return static_cast<int64_t>(dim) * (terms * (dim / 2) + (mlp ? 3 : 1) * dim);
}

// Returns nullptr, or why nothing was launched.
inline const char* performer_launch(DType dtype, int tile, const PerformerArgs& args, Stream stream) {
  if (tile < 0 || tile >= performer_tiles()) return "performer: no such tile";
  if (args.tokens < 1 || args.tokens > 1 << 24) return "performer: 1 to 16777216 tokens";
  if (args.images < 0 || args.images > 65535) return "performer: at most 65535 images";
  if (args.splits < 1 || args.splits > 1024) return "performer: 1 to 1024 splits";
  if (!(args.eps >= 0.0f && args.norm_eps >= 0.0f)) return "performer: an epsilon is negative";
  if (misaligned(args.kqv, args.weights, args.parallel, args.biases, args.partial, args.out))
    return "performer: tensors must be 16-byte aligned";
  return dtype == DType::bf16 ? performer::launch_dtype<bf16>(tile, args, stream)
                              : performer::launch_dtype<fp16>(tile, args, stream);
}

}  // namespace mw
