// The fused Monarch MLP under the emulator, for ctypes. Builds the variants that the quick tests use, or every one
// (MW_EVERY_SHAPE), or the one in which bugs are planted (MW_ONE_SHAPE).
#include <type_traits>

namespace mw {
constexpr bool built(bool is_bf16, int block_width, int tile) {
#if defined(MW_EVERY_SHAPE)
  return is_bf16 || block_width > 0 || tile >= 0;
#elif defined(MW_ONE_SHAPE)
  return is_bf16 && block_width == 48 && tile == 2;
#else
  if (block_width == 48) return is_bf16 || tile != 3;
  return is_bf16 && ((block_width == 80 && tile == 1) || (block_width == 96 && tile == 3));
#endif
}
}  // namespace mw
#define MW_MONARCH_MLP_BUILT(T, block_width, tile) built(std::is_same_v<T, bf16>, block_width, tile)

#include "mlp/monarch_mlp.cuh"

extern "C" {

const char* mw_monarch_mlp(int mode, unsigned seed, int dtype, int tile, const mw::MonarchMlpArgs* args) {
  mw::emulator::mode = mode;
  mw::emulator::seed = seed;
  return mw::monarch_mlp_launch(static_cast<mw::DType>(dtype), tile, *args, nullptr);
}

int mw_monarch_mlp_tiles() { return mw::monarch_mlp_tiles(); }

int mw_monarch_mlp_shared_bytes(int block_width, int tile) { return mw::monarch_mlp_shared_bytes(block_width, tile); }
}
