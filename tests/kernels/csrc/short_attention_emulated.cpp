// short_attention.cuh on a CPU, for ctypes.
#include "attention/short_attention.cuh"

extern "C" const char* mw_short_attention(int mode, unsigned seed, int dtype, int tile, const void* qkv,
                                          const float* log_sizes, void* out, int batch, int tokens, int heads, int head_dim, float scale,
                                          int multiprocessors, int shared_limit) {
  mw::emulator::mode = mode;
  mw::emulator::seed = seed;
  const mw::ShortAttentionArgs args{qkv,   log_sizes,       out,         batch, tokens, heads, head_dim,
                                   scale, multiprocessors, shared_limit};
#ifdef MILKWEED_ONE_TILE  // builds in a moment: for planted bugs
  if (dtype != 0 || tile != 0 || tokens > 64 || head_dim != 32) return "not in this build";
  return mw::attention::launch_tile<mw::attention::Tile<mw::bf16, 1, 64, 32, 2, 1>>(args, nullptr);
#else
  return mw::short_attention_launch(static_cast<mw::DType>(dtype), tile, args, nullptr);
#endif
}

extern "C" int mw_short_attention_tiles() { return mw::short_attention_tiles(); }
