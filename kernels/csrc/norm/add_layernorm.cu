// milkweed::add_layernorm on CUDA: checks the tensors, launches the kernel of add_layernorm.cuh.
#include "norm/add_layernorm.cuh"

#include "tensor_checks.h"

namespace {

using mw::host::Call;
using mw::host::Tensor;

Tensor add_layernorm(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias, double eps) {
  const Call call("add_layernorm", "x", x);
  call.rank(x, "x", 2);
  const int64_t rows = x.size(0), width = x.size(1);
  Tensor out = call.new_output({2, rows, width});
  mw::AddLayernormArgs args{};
  args.x = call.data(x, "x", {rows, width});
  args.residual = call.data(residual, "residual", {rows, width});
  args.weight = call.float_data(weight, "weight", {width});
  args.bias = call.float_data(bias, "bias", {width});
  args.sums = out.mutable_data_ptr();
  args.norms = static_cast<char*>(args.sums) + rows * width * 2;
  args.rows = call.size(rows, "the number of rows");
  args.width = call.size(width, "width");
  args.eps = static_cast<float>(eps);
  call.check_launch(mw::add_layernorm_launch(call.dtype(), args, call.stream()));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(milkweed, CUDA, m) { m.impl("add_layernorm", TORCH_BOX(&add_layernorm)); }
