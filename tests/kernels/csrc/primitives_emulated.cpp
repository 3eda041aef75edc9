// Small kernels that use one primitive each, so that the emulator itself is held to an independent reference.
#include "primitives.cuh"

using namespace mw;

namespace {

struct ConvertArgs {
  const float* from;
  uint16_t* to;
  float* back;
  int count;
};

template <class T>
MW_GLOBAL(32, 1) convert(const ConvertArgs args) {
  wait_on_dependent_grids();
  for (int i = thread_index(); i < args.count; i += 32) {
    const T value = from_float<T>(args.from[i]);
    args.to[i] = value.bits;
    args.back[i] = to_float(value);
  }
}

struct ProductArgs {
  const void* a;  // 16 x 16, row major
  const void* b;  // 8 x 16: b transposed, so that its columns are rows
  float* c;       // 16 x 8, added to
};

// The way the kernels use it: copies to shared memory, ldmatrix, mma, fragments out.
template <class T>
MW_GLOBAL(32, 1) product(const ProductArgs args) {
  wait_on_dependent_grids();
  T* a = reinterpret_cast<T*>(shared_memory());
  T* b = a + 16 * 16;
  const auto* from_a = static_cast<const T*>(args.a);
  const auto* from_b = static_cast<const T*>(args.b);
  copy_async_16(a + lane() * 8, from_a + lane() * 8, true);
  copy_async_16(b + lane() * 8, from_b + (lane() % 16) * 8, lane() < 16);
  copy_async_commit();
  copy_async_wait<0>();
  sync_warp();
  uint32_t fragment_a[4], fragment_b[4];
  ldmatrix_x4(fragment_a, a + (lane() % 16) * 16 + (lane() / 16) * 8);
  ldmatrix_x4(fragment_b, b + ((lane() & 7) + (lane() >> 4) * 8) * 16 + ((lane() >> 3) & 1) * 8);
  float c[4];
  float* out = args.c + (lane() / 4) * 8 + 2 * (lane() % 4);
  for (int i = 0; i < 4; i++) c[i] = out[(i / 2) * 64 + i % 2];
  mma_16x8x16<T>(c, fragment_a, fragment_b[0], fragment_b[1]);
  for (int i = 0; i < 4; i++) out[(i / 2) * 64 + i % 2] = c[i];
}

struct TransposeArgs {
  const uint16_t* from;  // 16 x 16
  uint32_t* to;          // 32 lanes x 4 registers
};

MW_GLOBAL(32, 1) transpose(const TransposeArgs args) {
  wait_on_dependent_grids();
  bf16* tile = reinterpret_cast<bf16*>(shared_memory());
  for (int i = lane(); i < 256; i += 32) tile[i].bits = args.from[i];
  sync_warp();
  uint32_t r[4];
  ldmatrix_x4_trans(r, tile + (lane() % 16) * 16 + (lane() / 16) * 8);
  for (int i = 0; i < 4; i++) args.to[lane() * 4 + i] = r[i];
}

struct FunctionArgs {
  const float* x;
  float* gelu_bf16;
  float* gelu_fp16;
  float* silu;
  float* shuffled;
  int count;
};

MW_GLOBAL(32, 1) functions(const FunctionArgs args) {
  wait_on_dependent_grids();
  for (int i = thread_index(); i < args.count; i += 32) {
    args.gelu_bf16[i] = gelu<bf16>(args.x[i]);
    args.gelu_fp16[i] = gelu<fp16>(args.x[i]);
    args.silu[i] = silu(args.x[i]);
  }
  args.shuffled[lane()] = shuffle_xor(args.x[lane()], 5);
  args.shuffled[32 + lane()] = shuffle(args.x[lane()], 3);
}

struct FaultArgs {
  int kind;
  char* global;
};

MW_GLOBAL(64, 1) faulty(const FaultArgs args) {
  uint32_t value[4] = {};
  if (args.kind == 6) load_16(value, args.global);
  if (args.kind == 7) launch_dependent_grids();
  if (args.kind == 8 && lane() == 31) return;
  wait_on_dependent_grids();
  if (args.kind == 0 && warp() == 0) sync_block();
  if (args.kind == 1 && lane() < 31) sync_warp();
  if (args.kind == 2) store_16(args.global + 8, value);
  if (args.kind == 3) copy_async_16(shared_memory() + 4, args.global, true);
  if (args.kind == 4) copy_async_16(shared_memory() + 1024, args.global, true);
  if (args.kind == 5) ldmatrix_x4(value, reinterpret_cast<const bf16*>(shared_memory()) + 1020);
}

// Thread t writes cell t and reads its neighbour's: right only with both the wait and the barrier.
struct NeighbourArgs {
  const float* from;  // 64 x 4
  float* to;
  int wait, barrier;
};

MW_GLOBAL(64, 1) neighbour(const NeighbourArgs args) {
  wait_on_dependent_grids();
  auto* cells = reinterpret_cast<float*>(shared_memory());
  copy_async_16(cells + thread_index() * 4, args.from + thread_index() * 4, true);
  copy_async_commit();
  if (args.wait != 0) copy_async_wait<0>();
  if (args.barrier != 0) sync_block();
  args.to[thread_index()] = cells[((thread_index() + 33) % 64) * 4];
}

struct PastArgs {
  float* to;
};

// Lane 0 reads the word behind its block's shared memory.
MW_GLOBAL(32, 1) past_the_end(const PastArgs args) {
  wait_on_dependent_grids();
  if (lane() == 0) args.to[0] = reinterpret_cast<const float*>(shared_memory())[128 / 4];
}

}  // namespace

extern "C" {

float mw_past_the_end() {
  float value = 0;
  launch<past_the_end>(dim3(1), 32, 128, nullptr, PastArgs{&value});
  return value;
}

void mw_convert(int dtype, const float* from, uint16_t* to, float* back, int count) {
  const ConvertArgs args{from, to, back, count};
  if (dtype == 0)
    launch<convert<bf16>>(dim3(1), 32, 0, nullptr, args);
  else
    launch<convert<fp16>>(dim3(1), 32, 0, nullptr, args);
}
const char* mw_product(int mode, int dtype, const void* a, const void* b, float* c) {
  emulator::mode = mode;
  const ProductArgs args{a, b, c};
  return dtype == 0 ? launch<product<bf16>>(dim3(1), 32, 1024, nullptr, args)
                    : launch<product<fp16>>(dim3(1), 32, 1024, nullptr, args);
}
void mw_transpose(const uint16_t* from, uint32_t* to) {
  launch<transpose>(dim3(1), 32, 512, nullptr, TransposeArgs{from, to});
}
void mw_functions(const float* x, float* gelu_bf16, float* gelu_fp16, float* silu, float* shuffled, int count) {
  launch<functions>(dim3(1), 32, 0, nullptr, FunctionArgs{x, gelu_bf16, gelu_fp16, silu, shuffled, count});
}
const char* mw_faulty(int kind, char* global) {
  return launch<faulty>(dim3(1), 64, 1024, nullptr, FaultArgs{kind, global});
}
const char* mw_neighbour(int mode, const float* from, float* to, int wait, int barrier) {
  emulator::mode = mode;
  return launch<neighbour>(dim3(1), 64, 1024, nullptr, NeighbourArgs{from, to, wait, barrier});
}
}
