// conv_branch.cuh on a CPU, for ctypes.
#include "conv/conv_branch.cuh"

extern "C" const char* mw_conv_branch(int mode, unsigned seed, int dtype, int tile, const void* tokens,
                                      const void* weight1, const float* bias1, const void* weight2,
                                      const float* bias2, const void* weight3, const float* bias3,
                                      const void* residual, void* out, int batch, int side, int class_tokens,
                                      int channels, int hidden_channels, int groups, int shared_limit) {
  mw::emulator::mode = mode;
  mw::emulator::seed = seed;
  const mw::ConvBranchArgs args{tokens, weight1,  weight2, weight3, bias1,        bias2,    bias3,
                                residual, out,    batch,   side,    class_tokens, channels, hidden_channels,
                                groups,   shared_limit};
  return mw::conv_branch_launch(static_cast<mw::DType>(dtype), tile, args, nullptr);
}

extern "C" int mw_conv_branch_tiles() { return mw::conv_branch_tiles(); }
