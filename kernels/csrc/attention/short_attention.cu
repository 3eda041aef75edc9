// milkweed::short_attention on CUDA: checks the tensors, launches the kernel of short_attention.cuh.
#include "attention/short_attention.cuh"

#include "tensor_checks.h"

namespace {

using mw::host::Call;
using mw::host::Tensor;

Tensor short_attention(const Tensor& qkv, int64_t num_heads, double scale, const std::optional<Tensor>& log_sizes,
                       int64_t tile) {
  const Call call("short_attention", "qkv", qkv);
  call.rank(qkv, "qkv", 3);
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3;
  call.require(num_heads > 0 && qkv.size(2) % (3 * num_heads) == 0, "qkv is ", qkv.size(2),
               " wide: 3 * num_heads * head_dim is needed, num_heads is ", num_heads);
  Tensor out = call.new_output({batch, tokens, width});
  mw::ShortAttentionArgs args{};
  args.qkv = call.data(qkv, "qkv", {batch, tokens, 3 * width});
  args.log_sizes = call.float_data(log_sizes, "log_sizes", {batch, tokens});
  args.out = out.mutable_data_ptr();
  args.batch = call.size(batch, "batch");
  args.tokens = call.size(tokens, "tokens");
  args.heads = call.size(num_heads, "num_heads");
  args.head_dim = call.size(width / num_heads, "head_dim");
  args.scale = static_cast<float>(scale);
  args.multiprocessors = call.multiprocessors();
  args.shared_limit = call.shared_limit();
  call.check_launch(mw::short_attention_launch(call.dtype(), call.size(tile, "tile"), args, call.stream()));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(milkweed, CUDA, m) { m.impl("short_attention", TORCH_BOX(&short_attention)); }
