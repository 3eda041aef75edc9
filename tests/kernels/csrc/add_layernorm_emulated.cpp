// add_layernorm.cuh on a CPU, for ctypes.
#include "norm/add_layernorm.cuh"

extern "C" const char* mw_add_layernorm(int mode, unsigned seed, int dtype, const void* x, const void* residual,
                                        const float* weight, const float* bias, void* sums, void* norms, int rows,
                                        int width, float eps) {
  mw::emulator::mode = mode;
  mw::emulator::seed = seed;
  const mw::AddLayernormArgs args{x, residual, weight, bias, sums, norms, rows, width, eps};
  return mw::add_layernorm_launch(static_cast<mw::DType>(dtype), args, nullptr);
}
