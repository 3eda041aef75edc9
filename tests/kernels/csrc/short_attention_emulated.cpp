// short_attention.cuh on a CPU, for ctypes.
#include "attention/short_attention.cuh"

extern "C" const char* mw_short_attention(int mode, unsigned seed, int dtype, int tile, const void* qkv, void* out,
                                          int batch, int tokens, int heads, int head_dim, float scale,
                                          int multiprocessors, int shared_limit) {
  mw::emulator::mode = mode;
  mw::emulator::seed = seed;
  const mw::ShortAttentionArgs args{qkv, out, batch, tokens, heads, head_dim, scale, multiprocessors, shared_limit};
  return mw::short_attention_launch(static_cast<mw::DType>(dtype), tile, args, nullptr);
}

extern "C" int mw_short_attention_tiles() { return mw::short_attention_tiles(); }
