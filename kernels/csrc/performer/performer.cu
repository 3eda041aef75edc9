// milkweed::performer_attention on CUDA: checks the tensors, launches the kernels of performer.cuh.
#include "performer/performer.cuh"

#include "tensor_checks.h"

namespace {

using mw::host::Call;
using mw::host::ScalarType;
using mw::host::Tensor;

Tensor performer_attention(const Tensor& kqv, const Tensor& weights, const Tensor& biases,
                           const std::optional<Tensor>& parallel, double eps, double norm_eps, int64_t tile) {
  const Call call("performer_attention", "kqv", kqv);
  call.rank(kqv, "kqv", 3);
  call.rank(biases, "biases", 2);
  const int64_t images = kqv.size(0), tokens = kqv.size(1), dim = kqv.size(2) / 3;
  call.require(kqv.size(2) % 3 == 0, "kqv is ", kqv.size(2), " wide: 3 * dim is needed");
  call.require(biases.size(0) == 1 || biases.size(0) == 3, "biases has ", biases.size(0),
               " rows: 1 is needed, or 3 with the MLP");
  mw::PerformerArgs args{};
  args.images = call.size(images, "the number of images");
  args.tokens = call.size(tokens, "the number of tokens");
  args.dim = call.size(dim, "dim");
  args.mlp = biases.size(0) == 3;
  args.multiprocessors = call.multiprocessors();
  args.shared_limit = call.shared_limit();
  args.splits = mw::performer_splits(args.images, args.tokens, args.multiprocessors);
  Tensor out = call.new_output({images, tokens, dim});
  Tensor partial = call.new_output({mw::performer_workspace(args.images, args.dim, args.splits)}, ScalarType::Float);
  args.kqv = call.data(kqv, "kqv", {images, tokens, 3 * dim});
  args.weights = call.data(weights, "weights", {mw::performer_weights(call.dtype(), args.dim, args.mlp)});
  args.biases = call.float_data(biases, "biases", {args.mlp ? 3 : 1, dim});
  args.parallel = call.data(parallel, "parallel", {images, tokens, dim});
  args.partial = static_cast<float*>(partial.mutable_data_ptr());
  args.out = out.mutable_data_ptr();
  args.eps = static_cast<float>(eps);
  args.norm_eps = static_cast<float>(norm_eps);
  call.check_launch(mw::performer_launch(call.dtype(), call.size(tile, "tile"), args, call.stream()));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(milkweed, CUDA, m) { m.impl("performer_attention", TORCH_BOX(&performer_attention)); }
