// Small kernels with one mistake each, which the emulator must notice.
#include "primitives.cuh"

using namespace mw;

namespace {

struct FaultArgs {
  int kind;
  char* global;
};

MW_GLOBAL(64, 1) faulty(const FaultArgs args) {
  uint32_t value[4] = {};
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
  if (lane() == 0) args.to[0] = reinterpret_cast<const float*>(shared_memory())[128 / 4];
}

}  // namespace

extern "C" {

float mw_past_the_end() {
  float value = 0;
  launch<past_the_end>(dim3(1), 32, 128, nullptr, PastArgs{&value});
  return value;
}

const char* mw_faulty(int kind, char* global) {
  return launch<faulty>(dim3(1), 64, 1024, nullptr, FaultArgs{kind, global});
}
const char* mw_neighbour(int mode, const float* from, float* to, int wait, int barrier) {
  emulator::mode = mode;
  return launch<neighbour>(dim3(1), 64, 1024, nullptr, NeighbourArgs{from, to, wait, barrier});
}
}
