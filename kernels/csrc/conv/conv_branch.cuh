// The convolution branch of ViTAE's normal cell in one launch: up to three grouped 3x3 convolutions over the tokens.
//
//   tokens -> conv width>hidden -> SiLU -> conv hidden>width [-> SiLU -> conv width>width -> SiLU] [-> + residual]
//
// (ViTAE, arXiv 2106.03348, section 3.3, batch norms folded into the convolutions.) Groups never mix, so a block
// takes a few groups of one image through the whole chain with its grid in shared memory: no halo is exchanged and
// nothing but tokens is read or written.
//
// Values between the convolutions are rounded to the tokens' type, since tensor cores take that. A NaN stays
// in its image, in its group, within three pixels.
#pragma once
#include "conv/grouped_conv.cuh"

namespace mw {

struct ConvBranchArgs {
  const void* tokens;   // (batch, class_tokens + side * side, channels), 16-byte aligned
  const void* weight1;  // packed by kernels/conv_branch.py: (groups, loads, 32, 8), 16-byte aligned
  const void* weight2;
  const void* weight3;   // nullptr: two convolutions, nothing after the second
  const float* bias1;    // (hidden_channels,)
  const float* bias2;    // (channels,)
  const float* bias3;    // (channels,), or nullptr with weight3
  const void* residual;  // like tokens; nullptr: none
  void* out;             // like tokens; the class token gets the residual alone, or zeros
  int batch, side, class_tokens, channels, hidden_channels, groups;
  int shared_limit;  // bytes of shared memory that a block may have
};

namespace conv_branch {

// `Width`, `Hidden`: channels of a group in the tokens and between the convolutions. `Groups`: groups of a block.
template <class Number, int Width, int Hidden, int Groups, int WarpsPerGroup, int MinBlocks>
struct Tile {
  using T = Number;
  static constexpr int width = Width, hidden = Hidden, groups = Groups, warps_per_group = WarpsPerGroup;
  static constexpr int threads = 32 * groups * warps_per_group, min_blocks = MinBlocks;
  static constexpr int channels = groups * width;  // of a block
  // Numbers from one pixel to the next, chosen so that half a warp's 8-byte reads of neighbouring pixels mostly go to
  // different banks.
  static constexpr int pixel = channels + 8;
  static constexpr int hidden_pixel = groups * hidden + (hidden % 16 == 0 ? 16 : 8);
  static_assert(width % 4 == 0 && hidden % 4 == 0 && channels % 8 == 0);
};

// Starts copying the block's channels of one image into `input`, and zeros the borders of both regions.
template <class C>
MW_DEVICE void copy_in(typename C::T* input, typename C::T* hidden, const typename C::T* tokens, int channels,
                       const Grid& grid) {
  constexpr int chunks = C::channels / 8, hidden_chunks = C::groups * C::hidden / 8;
  const int cells = grid.cells(), column = (thread_index() % chunks) * 8;
  for (int cell = thread_index() / chunks; cell < cells; cell += C::threads / chunks) {
    const int pixel = grid.pixel(cell);
    const int64_t from = pixel < 0 ? 0 : static_cast<int64_t>(pixel) * channels + column;
    copy_async_16(input + cell * C::pixel + column, tokens + from, pixel >= 0);
  }
  for (int cell = warp(); cell < cells; cell += C::threads / 32) {
    if (grid.pixel(cell) >= 0) continue;
    for (int chunk = lane(); chunk < hidden_chunks; chunk += 32)
      copy_async_16(hidden + cell * C::hidden_pixel + chunk * 8, tokens, false);
  }
  copy_async_commit();
}

// Writes eight channels of a token to memory, with the residual added.
template <class T>
MW_DEVICE void store_sum(T* to, uint32_t (&branch)[4], const T* residual) {
  if (residual != nullptr) {
    uint32_t other[4];
    load_16(other, residual);
    MW_UNROLL
    for (int i = 0; i < 4; i++) {
      float low, high, other_low, other_high;
      unpack2<T>(branch[i], low, high);
      unpack2<T>(other[i], other_low, other_high);
      branch[i] = pack2<T>(low + other_low, high + other_high);
    }
  }
  store_16(to, branch);
}

// Writes the block's channels of one image to memory, from rows of `from_pixel` numbers with `from_width` to a group.
template <class C>
MW_DEVICE void copy_out(typename C::T* out, const typename C::T* residual, const typename C::T* from, int from_pixel,
                        int from_width, int channels, int class_tokens, const Grid& grid) {
  constexpr int chunks = C::channels / 8;
  const int count = (class_tokens + grid.pixels()) * chunks;
  for (int i = thread_index(); i < count; i += C::threads) {
    const int token = i / chunks, column = (i % chunks) * 8;
    const int64_t at = static_cast<int64_t>(token) * channels + column;
    uint32_t branch[4] = {};
    if (token >= class_tokens) {
      const auto* row = from + grid.cell(token - class_tokens) * from_pixel;
      MW_UNROLL
      for (int i = 0; i < 2; i++) {
        const int channel = column + 4 * i;
        const int place = channel / C::width * from_width + channel % C::width;
        const auto quad = *reinterpret_cast<const Quad*>(row + place);
        branch[2 * i] = quad.low;
        branch[2 * i + 1] = quad.high;
      }
    }
    store_sum(out + at, branch, residual == nullptr ? nullptr : residual + at);
  }
}

// A barrier of one group's warps.
template <class C>
MW_DEVICE void sync_group() {
  if constexpr (C::warps_per_group == 1)
    sync_warp();
  else
    sync_block();
}

template <class C>
MW_GLOBAL(C::threads, C::min_blocks) conv_branch(const ConvBranchArgs args) {
  using T = typename C::T;
  using Expand = Product<C::width, C::hidden>;
  using Contract = Product<C::hidden, C::width>;
  using Refine = Product<C::width, C::width>;
  wait_on_dependent_grids();
  const Grid grid(args.side);
  T* input = reinterpret_cast<T*>(shared_memory());
  T* hidden = input + grid.cells() * C::pixel;
  const int64_t image = static_cast<int64_t>(block_y()) * (args.class_tokens + grid.pixels()) * args.channels;
  const int64_t origin = image + block_x() * C::channels;
  const auto* tokens = static_cast<const T*>(args.tokens) + origin;
  const auto* residual = args.residual == nullptr ? nullptr : static_cast<const T*>(args.residual) + origin;
  auto* out = static_cast<T*>(args.out) + origin;
  copy_in<C>(input, hidden, tokens + args.class_tokens * args.channels, args.channels, grid);

  const bool deep = args.weight3 != nullptr;
  const int local = warp() / C::warps_per_group, part = warp() % C::warps_per_group;
  const int group = block_x() * C::groups + local;
  T* my_input = input + local * C::width;
  T* my_hidden = hidden + local * C::hidden;
  Weights<Expand> expand;
  Weights<Contract> contract;
  Weights<Refine> refine;
  load_weights(expand, args.weight1, args.bias1, group);
  copy_async_wait<0>();  // sync: input wait
  sync_block();          // sync: input barrier
  launch_dependent_grids();

  convolve<T>(my_input, C::pixel, expand, grid, part, C::warps_per_group,
              [&](int cell, int channel, float low, float high) {
                auto* to = my_hidden + cell * C::hidden_pixel + channel;
                *reinterpret_cast<uint32_t*>(to) = pack2<T>(silu(low), silu(high));
              });
  load_weights(contract, args.weight2, args.bias2, group);
  sync_group<C>();  // sync: hidden barrier
  // The input has been read, so its memory takes the second convolution's result.
  convolve<T>(my_hidden, C::hidden_pixel, contract, grid, part, C::warps_per_group,
              [&](int cell, int channel, float low, float high) {
                auto* to = my_input + cell * C::pixel + channel;
                *reinterpret_cast<uint32_t*>(to) = deep ? pack2<T>(silu(low), silu(high)) : pack2<T>(low, high);
              });
  if (deep) {
    load_weights(refine, args.weight3, args.bias3, group);
    sync_group<C>();  // sync: contracted barrier
    convolve<T>(my_input, C::pixel, refine, grid, part, C::warps_per_group,
                [&](int cell, int channel, float low, float high) {
                  auto* to = my_hidden + cell * C::hidden_pixel + channel;
                  *reinterpret_cast<uint32_t*>(to) = pack2<T>(silu(low), silu(high));
                });
  }
  sync_block();  // sync: result barrier
  copy_out<C>(out, residual, deep ? hidden : input, deep ? C::hidden_pixel : C::pixel, deep ? C::hidden : C::width,
              args.channels, args.class_tokens, grid);
}

template <class C>
const char* launch_tile(const ConvBranchArgs& args, Stream stream) {
  if (args.groups % C::groups != 0) return "conv branch: the tile's groups do not divide the groups";
  const int cells = (args.side + 1) * (args.side + 2) + 1;
  const int shared_bytes = static_cast<int>(sizeof(typename C::T)) * cells * (C::pixel + C::hidden_pixel);
  if (shared_bytes > args.shared_limit) return "conv branch: the grid needs more shared memory than there is";
  const dim3 grid(static_cast<unsigned>(args.groups / C::groups), static_cast<unsigned>(args.batch));
  return launch<conv_branch<C>>(grid, C::threads, static_cast<size_t>(shared_bytes), stream, args);
}

template <class T, int Hidden>
const char* launch_hidden(int tile, const ConvBranchArgs& args, Stream stream) {
  switch (tile) {
    case 0: return launch_tile<Tile<T, 4, Hidden, 8, 1, Hidden == 8 ? 4 : (Hidden == 12 ? 3 : 2)>>(args, stream);
    case 1: return launch_tile<Tile<T, 4, Hidden, 4, 2, Hidden == 16 ? 2 : 3>>(args, stream);
    case 2: return launch_tile<Tile<T, 4, Hidden, 4, 4, 1>>(args, stream);
    default: return "conv branch: no such tile";
  }
}

template <class T>
const char* launch_dtype(int tile, const ConvBranchArgs& args, Stream stream) {
  switch (args.hidden_channels / args.groups) {
    case 8: return launch_hidden<T, 8>(tile, args, stream);
    case 12: return launch_hidden<T, 12>(tile, args, stream);
    case 16: return launch_hidden<T, 16>(tile, args, stream);
    default: return "conv branch: groups must have 8, 12 or 16 hidden channels";
  }
}

}  // namespace conv_branch

// Tile variants, the default first.
inline int conv_branch_tiles() { return 3; }

// Returns nullptr, or why nothing was launched.
inline const char* conv_branch_launch(DType dtype, int tile, const ConvBranchArgs& args, Stream stream) {
  if (args.side < 1 || args.side > conv_branch::kMaxSide) return "conv branch: the grid must be 1 to 32 pixels a side";
  if (args.class_tokens < 0 || args.class_tokens > 1) return "conv branch: at most one class token";
  if (args.batch < 0 || args.batch > 65535) return "conv branch: at most 65535 images";
  if (args.groups < 1 || args.channels != args.groups * 4) return "conv branch: groups must have 4 channels";
  if (args.hidden_channels % args.groups != 0) return "conv branch: groups do not divide the hidden channels";
  if (misaligned(args.tokens, args.weight1, args.weight2, args.weight3, args.residual, args.out))
    return "conv branch: tensors must be 16-byte aligned";
  if (args.batch == 0) return nullptr;
  return dtype == DType::bf16 ? conv_branch::launch_dtype<bf16>(tile, args, stream)
                              : conv_branch::launch_dtype<fp16>(tile, args, stream);
}

}  // namespace mw
