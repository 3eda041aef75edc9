// milkweed::monarch_mlp on CUDA: checks the tensors, launches the kernel of monarch_mlp.cuh.
#include "mlp/monarch_mlp.cuh"

#include "tensor_checks.h"

namespace {

using mw::host::Call;
using mw::host::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor monarch_mlp(const Tensor& x, const Tensor& factor1, const Tensor& stream, const Tensor& factor2,
                   const Tensor& bias1, const Tensor& bias2, const MaybeTensor& residual,
                   const MaybeTensor& norm_weight, const MaybeTensor& norm_bias, double eps, int64_t tile) {
  const Call call("monarch_mlp", "x", x);
  call.rank(x, "x", 2);
  call.rank(factor1, "factor1", 5);
  call.rank(stream, "stream", 7);
  const int64_t rows = x.size(0), width = x.size(1);
  const int64_t nblocks = mw::kMlpBlocks, steps = factor1.size(1), groups = stream.size(2);
  call.require(width % (8 * nblocks) == 0, "x is ", width, " wide: a multiple of ", 8 * nblocks, " is needed");
  call.require(norm_weight.has_value() == norm_bias.has_value(), "norm_weight and norm_bias come together");
  Tensor y = call.new_output({rows, width});
  mw::MonarchMlpArgs args{};
  args.x = call.data(x, "x", {rows, width});
  args.factor1 = call.data(factor1, "factor1", {nblocks, steps, steps, 32, 8});
  args.stream = call.data(stream, "stream", {nblocks, nblocks, groups, 2, steps, 32, 8});
  args.factor2 = call.data(factor2, "factor2", {width / nblocks / 8, nblocks * steps / 2, 32, 8});
  args.bias1 = call.float_data(bias1, "bias1", {nblocks, nblocks, groups, 16});
  args.bias2 = call.float_data(bias2, "bias2", {width});
  args.residual = call.data(residual, "residual", {rows, width});
  args.norm_weight = call.float_data(norm_weight, "norm_weight", {width});
  args.norm_bias = call.float_data(norm_bias, "norm_bias", {width});
  args.y = y.mutable_data_ptr();
  args.eps = static_cast<float>(eps);
  args.rows = call.size(rows, "the number of rows");
  args.width = call.size(width, "width");
  args.block_width = call.size(16 * steps, "block width");
  args.groups = call.size(groups, "groups");
  args.shared_limit = call.shared_limit();
  call.check_launch(mw::monarch_mlp_launch(call.dtype(), call.size(tile, "tile"), args, call.stream()));
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(milkweed, CUDA, m) { m.impl("monarch_mlp", TORCH_BOX(&monarch_mlp)); }
