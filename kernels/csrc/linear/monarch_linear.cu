// milkweed::monarch_linear on CUDA: checks the tensors, launches the kernel of monarch_linear.cuh.
#include "linear/monarch_linear.cuh"

#include "tensor_checks.h"

namespace {

using mw::host::Call;
using mw::host::Tensor;

Tensor monarch_linear(const Tensor& x, const Tensor& w1, const Tensor& w2, const std::optional<Tensor>& bias,
                      const std::optional<Tensor>& residual, int64_t act, int64_t tile) {
  const Call call("monarch_linear", "x", x);
  call.rank(x, "x", 2);
  call.rank(w1, "w1", 3);
  call.rank(w2, "w2", 3);
  const int64_t rows = x.size(0), in_features = x.size(1), nblocks = w1.size(0), s = w2.size(1);
  call.require(nblocks > 0 && in_features % nblocks == 0 && w1.size(1) % nblocks == 0, "x is ", in_features,
               " wide and w1 has ", w1.size(1), " rows: multiples of its ", nblocks, " blocks are needed");
  call.require(act == 0 || act == 1, "act is ", act, ": 0 (none) or 1 (GELU) is needed");
  const int64_t p = in_features / nblocks, r = w1.size(1), out_features = nblocks * s;
  Tensor y = call.new_output({rows, out_features});
  mw::MonarchLinearArgs args{};
  args.x = call.data(x, "x", {rows, in_features});
  args.w1 = call.data(w1, "w1", {nblocks, r, (p + 15) / 16 * 16});
  args.w2 = call.data(w2, "w2", {nblocks, s, r});
  args.bias = call.float_data(bias, "bias", {out_features});
  args.residual = call.data(residual, "residual", {rows, out_features});
  args.y = y.mutable_data_ptr();
  args.rows = call.size(rows, "the number of rows");
  args.nblocks = call.size(nblocks, "nblocks");
  args.p = call.size(p, "p");
  args.c = call.size(r / nblocks, "c");
  args.s = call.size(s, "s");
  args.activation = static_cast<mw::Activation>(act);
  args.multiprocessors = call.multiprocessors();
  args.shared_limit = call.shared_limit();
  call.check_launch(mw::monarch_linear_launch(call.dtype(), call.size(tile, "tile"), args, call.stream()));
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(milkweed, CUDA, m) { m.impl("monarch_linear", TORCH_BOX(&monarch_linear)); }
