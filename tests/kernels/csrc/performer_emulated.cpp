// The performer attention's two launches for ctypes.
#include "performer/performer.cuh"

using namespace mw;

extern "C" {

int mw_performer_splits(int images, int tokens, int multiprocessors) {
  return performer_splits(images, tokens, multiprocessors);
}
int64_t mw_performer_workspace(int images, int dim, int splits) { return performer_workspace(images, dim, splits); }
int64_t mw_performer_weights(int dtype, int dim, int mlp) {
  return performer_weights(static_cast<DType>(dtype), dim, mlp != 0);
}

const char* mw_performer(int mode, unsigned seed, int dtype, int tile, const void* kqv, const void* weights,
                         const float* biases, const void* parallel, float* partial, void* out, int images, int tokens,
                         int dim, int splits, int mlp, float eps, float norm_eps, int multiprocessors,
                         int shared_limit) {
  emulator::mode = mode;
  emulator::seed = seed;
  PerformerArgs args{};
  args.kqv = kqv;
  args.weights = weights;
  args.biases = biases;
  args.parallel = parallel;
  args.partial = partial;
  args.out = out;
  args.images = images;
  args.tokens = tokens;
  args.dim = dim;
  args.splits = splits;
  args.mlp = mlp != 0;
  args.eps = eps;
  args.norm_eps = norm_eps;
  args.multiprocessors = multiprocessors;
  args.shared_limit = shared_limit;
#ifdef MW_STAGES
  // One small tile whose weights pass through a ring of so many stages: builds quickly, for planted mistakes.
  if (tile != 0 || dtype != 0 || dim != 64 || mlp == 0) return "this build is for tile 0, bf16, width 64, with the MLP";
  using Summary = performer::KvTile<bf16, 64, 2, 2, 16, 1>;
  using Output = performer::OutputTile<bf16, 64, true, 1, 4, MW_STAGES, 1>;
  return performer::launch_both<Summary, Output, performer::kSmallShared>(args, nullptr);
#else
  return performer_launch(static_cast<DType>(dtype), tile, args, nullptr);
#endif
}
}
