// The tiles of short attention: how many queries, keys and warps a block has, and what that takes of shared memory.
#pragma once

namespace mw {
namespace attention {

constexpr int kQueries = 16;  // a warp's rows at a time: the height of an mma

// Shared memory of a multiprocessor of the architecture that this is compiled for.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr int kMultiprocessorShared = 228 * 1024;
#elif __CUDA_ARCH__ == 800
constexpr int kMultiprocessorShared = 164 * 1024;
#else
constexpr int kMultiprocessorShared = 100 * 1024;
#endif

// `MinTokens` to `Keys`: the numbers of tokens that it is used for. `MinBlocks`: blocks that a multiprocessor
// should hold, which bounds the registers; `min_blocks` is less where shared memory holds fewer.
template <class Number, int MinTokens, int Keys, int HeadDim, int Warps, int MinBlocks>
struct Tile {
  using T = Number;
  static constexpr int min_tokens = MinTokens, keys = Keys, head_dim = HeadDim, warps = Warps;
  static constexpr int threads = 32 * warps;
  static constexpr int pitch = head_dim + 8;  // 8 rows apart by this start in 8 different 16-byte banks
  static constexpr int log_size_bytes = static_cast<int>(sizeof(float)) * keys;
  static constexpr int shared_bytes =
      static_cast<int>(sizeof(T)) * (2 * keys + kQueries * warps) * pitch + log_size_bytes;
  static constexpr int fitting = kMultiprocessorShared / (shared_bytes + 1024);  // 1 KB a block is CUDA's own
  static constexpr int min_blocks = fitting < 1 ? 1 : (fitting < MinBlocks ? fitting : MinBlocks);
  static_assert(keys % 16 == 0 && head_dim % 32 == 0);
};

}  // namespace attention
}  // namespace mw
