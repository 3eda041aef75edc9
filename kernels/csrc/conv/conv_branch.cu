// milkweed::conv_branch on CUDA: checks the tensors, launches the kernel of conv_branch.cuh.
#include "conv/conv_branch.cuh"

#include "tensor_checks.h"

namespace {

using mw::host::Call;
using mw::host::Tensor;
using MaybeTensor = std::optional<Tensor>;

// The side of a square of so many pixels; 0 where it is no square.
int64_t side_of(int64_t pixels) {
  int64_t side = 0;
  while (side * side < pixels) side++;
  return side * side == pixels ? side : 0;
}

// Of a convolution packed for the tensor cores: 16-byte loads of a lane (kernels/conv_branch.py).
int64_t loads(int64_t in, int64_t out) {
  const int64_t steps = (9 * (in / 4) + 3) / 4, blocks = (out + 7) / 8;
  return (steps * blocks + 1) / 2;
}

Tensor conv_branch(const Tensor& tokens, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2,
                   const Tensor& bias2, const MaybeTensor& weight3, const MaybeTensor& bias3,
                   const MaybeTensor& residual, int64_t groups, bool class_token, int64_t tile) {
  const Call call("conv_branch", "tokens", tokens);
  call.rank(tokens, "tokens", 3);
  call.rank(bias1, "bias1", 1);
  const int64_t batch = tokens.size(0), count = tokens.size(1), channels = tokens.size(2), hidden = bias1.size(0);
  const int64_t side = side_of(count - class_token);
  call.require(side > 0, count, " tokens are no square grid", class_token ? " and a class token" : "");
  call.require(groups > 0 && channels % groups == 0 && hidden % groups == 0, "groups is ", groups, ": it must divide ",
               channels, " and ", hidden, " channels");
  call.require(weight3.has_value() == bias3.has_value(), "weight3 and bias3 come together");
  const int64_t in = channels / groups, between = hidden / groups;
  Tensor out = call.new_output({batch, count, channels});
  mw::ConvBranchArgs args{};
  args.tokens = call.data(tokens, "tokens", {batch, count, channels});
  args.weight1 = call.data(weight1, "weight1", {groups, loads(in, between), 32, 8});
  args.bias1 = call.float_data(bias1, "bias1", {hidden});
  args.weight2 = call.data(weight2, "weight2", {groups, loads(between, in), 32, 8});
  args.bias2 = call.float_data(bias2, "bias2", {channels});
  args.weight3 = call.data(weight3, "weight3", {groups, loads(in, in), 32, 8});
  args.bias3 = call.float_data(bias3, "bias3", {channels});
  args.residual = call.data(residual, "residual", {batch, count, channels});
  args.out = out.mutable_data_ptr();
  args.batch = call.size(batch, "batch");
  args.side = call.size(side, "side");
  args.class_tokens = class_token ? 1 : 0;
  args.channels = call.size(channels, "channels");
  args.hidden_channels = call.size(hidden, "hidden channels");
  args.groups = call.size(groups, "groups");
  args.shared_limit = call.shared_limit();
  call.check_launch(mw::conv_branch_launch(call.dtype(), call.size(tile, "tile"), args, call.stream()));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(milkweed, CUDA, m) { m.impl("conv_branch", TORCH_BOX(&conv_branch)); }
