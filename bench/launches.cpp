// Prints what each launch function would launch for published shapes, without launching: which kernel, how many
// threads, how much shared memory. One line each: operator|problem|number type|tile|kernel|threads|bytes, or
// operator|problem|number type|tile|refusal. Compiled by a host compiler, with the emulator's device code.
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <typeinfo>

#define launch launched_by_the_emulator
#include "primitives.cuh"
#undef launch

namespace mw {

std::string row;  // the beginning of this launch's line
bool printed;     // whether something was launched

template <auto kernel>
struct Name {};

template <auto kernel, class Args>
const char* launch(dim3, int threads, size_t shared_bytes, Stream, const Args&) {
  // N2mw4NameI...: the only way to a kernel's full name that needs no list of kernels.
  char* name = abi::__cxa_demangle(typeid(Name<kernel>).name(), nullptr, nullptr, nullptr);
  std::printf("%s|%s|%d|%zu\n", row.c_str(), name, threads, shared_bytes);
  std::free(name);
  printed = true;
  return nullptr;
}

}  // namespace mw

#include "conv_branch.cuh"
#include "monarch_linear.cuh"
#include "monarch_mlp.cuh"
#include "performer.cuh"
#include "short_attention.cuh"

namespace {

using mw::DType;

constexpr int kNoLimit = std::numeric_limits<int>::max();
constexpr int kMultiprocessors = 132;
alignas(16) char memory[16];  // stands for every tensor

template <class Args, class Launch>
void every_tile(const char* op, const std::string& problem, int tiles, const Args& args, Launch launch) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (int tile = 0; tile < tiles; tile++) {
      mw::row = std::string(op) + "|" + problem + "|" + (dtype == DType::bf16 ? "bfloat16" : "float16") + "|" +
                std::to_string(tile);
      mw::printed = false;
      const char* error = launch(dtype, tile, args, nullptr);
      if (!mw::printed) std::printf("%s|%s\n", mw::row.c_str(), error == nullptr ? "nothing was launched" : error);
    }
  }
}

void linear(const char* problem, int nblocks, int p, int c, int s) {
  mw::MonarchLinearArgs args{};
  args.x = args.w1 = args.w2 = args.residual = memory;
  args.bias = reinterpret_cast<const float*>(memory);
  args.y = memory;
  args.rows = 8 * 197;
  args.nblocks = nblocks;
  args.p = p;
  args.c = c;
  args.s = s;
  args.multiprocessors = kMultiprocessors;
  args.shared_limit = kNoLimit;
  every_tile("monarch_linear", problem, mw::monarch_linear_tiles(), args, mw::monarch_linear_launch);
}

void mlp(const char* problem, int nblocks, int width, int block_width) {
  mw::MonarchMlpArgs args{};
  args.x = args.factor1 = args.stream = args.factor2 = args.residual = memory;
  args.bias1 = args.bias2 = args.norm_weight = args.norm_bias = reinterpret_cast<const float*>(memory);
  args.y = memory;
  args.rows = 8 * 197;
  args.width = width;
  args.nblocks = nblocks;
  args.block_width = block_width;
  args.groups = 6;
  args.shared_limit = kNoLimit;
  every_tile("monarch_mlp", problem, mw::monarch_mlp_tiles(), args, mw::monarch_mlp_launch);
}

void attention(int tokens, int head_dim) {
  mw::ShortAttentionArgs args{};
  args.qkv = args.out = memory;
  args.batch = 8;
  args.tokens = tokens;
  args.heads = 6;
  args.head_dim = head_dim;
  args.scale = 0.125f;
  args.multiprocessors = kMultiprocessors;
  args.shared_limit = kNoLimit;
  const std::string problem = "N " + std::to_string(tokens) + ", head dim " + std::to_string(head_dim);
  every_tile("short_attention", problem, mw::short_attention_tiles(), args, mw::short_attention_launch);
}

void performer(int dim, bool with_mlp) {
  mw::PerformerArgs args{};
  args.kqv = args.weights = args.parallel = memory;
  args.biases = args.partial = reinterpret_cast<float*>(memory);
  args.out = memory;
  args.images = 8;
  args.tokens = 28 * 28;
  args.dim = dim;
  args.splits = mw::performer_splits(args.images, args.tokens, kMultiprocessors);
  args.mlp = with_mlp;
  args.multiprocessors = kMultiprocessors;
  args.shared_limit = kNoLimit;
  const std::string problem = "dim " + std::to_string(dim) + (with_mlp ? " with MLP" : "");
  every_tile("performer_attention", problem, mw::performer_tiles(), args, mw::performer_launch);
}

void conv(int hidden_of_group) {
  mw::ConvBranchArgs args{};
  args.tokens = args.weight1 = args.weight2 = args.weight3 = args.residual = memory;
  args.bias1 = args.bias2 = args.bias3 = reinterpret_cast<const float*>(memory);
  args.out = memory;
  args.batch = 8;
  args.side = 14;
  args.class_tokens = 1;
  args.groups = 64;
  args.channels = 4 * args.groups;
  args.hidden_channels = hidden_of_group * args.groups;
  args.shared_limit = kNoLimit;
  const std::string problem = "14 x 14, groups 4-" + std::to_string(hidden_of_group) + "-4";
  every_tile("conv_branch", problem, mw::conv_branch_tiles(), args, mw::conv_branch_launch);
}

}  // namespace

int main() {
  linear("ViT-B fc1", 4, 192, 48, 768);  // fc2 has the same kernels and as much shared memory
  linear("ViT-S fc1", 4, 96, 24, 384);
  linear("ViT-B fc1, nblocks 2", 2, 384, 192, 1536);
  linear("ViT-B fc1, nblocks 8", 8, 96, 12, 384);
  mlp("width 192 (ViT-T)", 4, 192, 48);
  mlp("width 256 (ViTAE-T, T2T-7)", 4, 256, 64);
  mlp("width 320 (ViTAE-13M)", 4, 320, 80);
  mlp("width 384 (ViT-S, ViTAE-S, T2T-14)", 4, 384, 96);
  mlp("width 192, nblocks 2", 2, 192, 96);
  mlp("width 256, nblocks 2", 2, 256, 128);
  mlp("width 384, nblocks 2", 2, 384, 192);
  mlp("width 256, nblocks 8", 8, 256, 32);
  mlp("width 384, nblocks 8", 8, 384, 48);
  for (const int head_dim : {64, 32})
    for (const int tokens : {50, 65, 197, 256}) attention(tokens, head_dim);
  for (const int dim : {32, 64, 96, 192})
    for (const bool with_mlp : {false, true}) performer(dim, with_mlp);
  for (const int hidden : {8, 12, 16}) conv(hidden);
}
