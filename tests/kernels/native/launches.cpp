// Prints which kernels the launch functions choose for a few published shapes, without launching them, a line each:
// header|kernel and its parameter|threads of a block|bytes of shared memory of a block. A refusal ends it with 1.
// Compiled by a host compiler, with the emulator's device code.
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <typeinfo>

#define launch launched_by_the_emulator
#include "primitives.cuh"
#undef launch

namespace mw {

const char* header;  // of the launch function that is asked

template <auto kernel>
struct Name {};

template <auto kernel, class Args>
const char* launch(dim3, int threads, size_t shared_bytes, Stream, const Args&) {
  // N2mw4NameI...: the only way to a kernel's full name that needs no list of kernels.
  char* name = abi::__cxa_demangle(typeid(Name<kernel>).name(), nullptr, nullptr, nullptr);
  std::printf("%s|%s|%d|%zu\n", header, name, threads, shared_bytes);
  std::free(name);
  return nullptr;
}

}  // namespace mw

#include "conv/conv_branch.cuh"
#include "mlp/monarch_mlp.cuh"
#include "norm/add_layernorm.cuh"
#include "performer/performer.cuh"
#include "attention/short_attention.cuh"

namespace {

using Tiles = std::initializer_list<int>;

constexpr int kNoLimit = std::numeric_limits<int>::max();
constexpr int kMultiprocessors = 132;
alignas(16) char memory[16];  // stands for every tensor

template <class Args, class Launch>
void ask(const char* header, Tiles tiles, const Args& args, Launch launch) {
  mw::header = header;
  for (const int tile : tiles) {
    const char* refusal = launch(mw::DType::bf16, tile, args, nullptr);
    if (refusal == nullptr) continue;
    std::fprintf(stderr, "%s, tile %d: %s\n", header, tile, refusal);
    std::exit(1);
  }
}

void mlp(Tiles tiles, int width, int block_width) {
  mw::MonarchMlpArgs args{};
  args.x = args.factor1 = args.stream = args.factor2 = args.residual = memory;
  args.bias1 = args.bias2 = args.norm_weight = args.norm_bias = reinterpret_cast<const float*>(memory);
  args.y = memory;
  args.rows = 8 * 197;
  args.width = width;
  args.block_width = block_width;
  args.groups = 6;
  args.shared_limit = kNoLimit;
  ask("mlp/monarch_mlp.cuh", tiles, args, mw::monarch_mlp_launch);
}

void attention(Tiles tiles, int tokens, int head_dim) {
  mw::ShortAttentionArgs args{};
  args.qkv = args.out = memory;
  args.batch = 8;
  args.tokens = tokens;
  args.heads = 6;
  args.head_dim = head_dim;
  args.scale = 0.125f;
  args.multiprocessors = kMultiprocessors;
  args.shared_limit = kNoLimit;
  ask("attention/short_attention.cuh", tiles, args, mw::short_attention_launch);
}

void performer_with_mlp(Tiles tiles, int dim) {
  mw::PerformerArgs args{};
  args.kqv = args.weights = args.parallel = memory;
  args.biases = args.partial = reinterpret_cast<float*>(memory);
  args.out = memory;
  args.images = 8;
  args.tokens = 28 * 28;
  args.dim = dim;
  args.splits = mw::performer_splits(args.images, args.tokens, kMultiprocessors);
  args.mlp = true;
  args.multiprocessors = kMultiprocessors;
  args.shared_limit = kNoLimit;
  ask("performer/performer.cuh", tiles, args, mw::performer_launch);
}

void conv(Tiles tiles, int hidden_of_group) {
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
  ask("conv/conv_branch.cuh", tiles, args, mw::conv_branch_launch);
}

void add_norm(int width) {
  mw::AddLayernormArgs args{};
  args.x = args.residual = args.sums = args.norms = memory;
  args.weight = args.bias = reinterpret_cast<const float*>(memory);
  args.rows = 8 * 197;
  args.width = width;
  const auto launch = [](mw::DType dtype, int, const auto& given, mw::Stream stream) {
    return mw::add_layernorm_launch(dtype, given, stream);
  };
  ask("norm/add_layernorm.cuh", {0}, args, launch);
}

}  // namespace

// The tiles are those that serve these shapes on an H200.
int main() {
  mlp({2}, 256, 64);                // ViTAE-T, T2T-7
  mlp({2}, 384, 96);                // ViT-S, ViTAE-S, T2T-14
  attention({0, 1}, 197, 64);
  attention({0}, 197, 32);
  performer_with_mlp({0}, 64);
  performer_with_mlp({1}, 192);
  conv({0}, 8);
  conv({0}, 12);
  for (const int width : {192, 384, 768, 1024}) add_norm(width);
}
