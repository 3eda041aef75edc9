// The Monarch linear kernel's entry for the tests: raw pointers and sizes in, nullptr or the reason out.
#include "linear/monarch_linear.cuh"

namespace {

// Whether 8 rows of a chunk have the same 16 bytes of their depth in 8 different groups of banks.
template <class C>
bool banks_differ() {
  for (int vector = 0; vector < C::depth / 8; vector++) {
    unsigned groups = 0;
    for (int row = 0; row < 8; row++) groups |= 1u << (mw::linear::swizzled<C>(row, vector) / 8 % 8);
    if (groups != 0xff) return false;
  }
  return true;
}

}  // namespace

extern "C" {

int mw_monarch_linear_banks_differ() {
  using namespace mw::linear;
  return banks_differ<Rows128<mw::bf16, 4>>() && banks_differ<Rows32<mw::bf16, 8>>();  // depths 32 and 16
}

int mw_monarch_linear_tiles() { return mw::monarch_linear_tiles(); }

// sizes: rows, nblocks, p, c, s.
const char* mw_monarch_linear(int mode, unsigned seed, int dtype, int tile, const void* x, const void* w1,
                              const void* w2, const float* bias, const void* residual, void* y, const int* sizes,
                              int activation, int multiprocessors, int shared_limit) {
  mw::emulator::mode = mode;
  mw::emulator::seed = seed;
  const mw::MonarchLinearArgs args{x,
                                   w1,
                                   w2,
                                   bias,
                                   residual,
                                   y,
                                   sizes[0],
                                   sizes[1],
                                   sizes[2],
                                   sizes[3],
                                   sizes[4],
                                   static_cast<mw::Activation>(activation),
                                   multiprocessors,
                                   shared_limit};
#ifdef ONE_VARIANT  // bf16, four blocks, whatever is asked for: builds in a tenth of the time
  return dtype == 0 && tile == 2 ? mw::linear::launch_tile<mw::linear::Rows64Twice<mw::bf16, 4>>(args, nullptr)
                                 : "built for one variant";
#else
  return mw::monarch_linear_launch(static_cast<mw::DType>(dtype), tile, args, nullptr);
#endif
}
}
