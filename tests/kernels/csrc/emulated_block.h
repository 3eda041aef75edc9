// A block of threads as fibers: its warps in turn, barriers, copies in flight, and how a kernel is run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>
#include <sys/mman.h>

#include "emulated_fibers.h"

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace mw::emulator {

inline int mode = 0;  // bit 0: copies land at once; bit 1: one warp runs ahead
inline unsigned seed = 1;

struct Copy {
  char* to;
  const char* from;
  bool valid;
};

struct Fiber {
  Context context;
  int thread = 0;
  bool done = false;
  bool waited = false;  // for earlier kernels
  const unsigned* awaited = nullptr;  // a generation counter; the fiber waits while it equals `seen`
  unsigned seen = 0;
  std::vector<std::vector<Copy>> groups;  // committed copies, oldest first
  std::vector<Copy> open;

  bool runnable() const { return !done && (awaited == nullptr || *awaited != seen); }
};

// What a warp's lanes bring to an operation and take from it.
struct Mailbox {
  int arrived = 0;
  unsigned generation = 0;
  alignas(16) char in[32][64];
  alignas(16) char out[32][64];
};

struct Block {
  dim3 grid, index;
  int threads = 0;
  char* shared = nullptr;
  size_t shared_bytes = 0;
  std::vector<Fiber> fibers;
  std::vector<Mailbox> mailboxes;
  int at_barrier = 0;
  unsigned barrier_generation = 0;
  Context scheduler;
  Fiber* current = nullptr;
  std::function<void()> body;
  const char* fault = nullptr;  // why the launch ends early
};

inline Block block;

inline void yield() { switch_context(block.current->context, block.scheduler); }

inline void wait_for(const unsigned& counter, unsigned seen) {
  Fiber& self = *block.current;
  self.awaited = &counter;
  self.seen = seen;
  while (counter == seen) yield();
  self.awaited = nullptr;
}

inline void fail(const char* text) {
  if (block.fault == nullptr) block.fault = text;
  block.current->done = true;
  while (true) yield();
}

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Until then earlier kernels may still write what is read, and read what is written.
inline void check_waited() {
  if (!block.current->waited) fail("global memory before wait_on_dependent_grids");
}

inline void check_shared(const void* pointer, size_t bytes) {
  const auto* p = static_cast<const char*>(pointer);
  if (p < block.shared || p + bytes > block.shared + block.shared_bytes) fail("shared memory: address out of range");
  if (!aligned(p)) fail("shared memory: address is not 16-byte aligned");
}

inline void fiber_main() {
  block.body();
  check_waited();  // a kernel that ends early would free later ones from waiting for earlier ones
  block.current->done = true;
  while (true) yield();
}

// All 32 lanes meet; the last one runs `operation(in, out)` for the warp.
template <class In, class Out, class Operation>
Out collective(const In& in, Operation operation) {
  static_assert(sizeof(In) <= 64 && sizeof(Out) <= 64);
  const int thread = block.current->thread, lane = thread % 32;
  Mailbox& box = block.mailboxes[thread / 32];
  std::memcpy(box.in[lane], &in, sizeof in);
  if (++box.arrived == 32) {
    operation(box);
    box.arrived = 0;
    box.generation++;
  } else {
    wait_for(box.generation, box.generation);
  }
  Out out;
  std::memcpy(&out, box.out[lane], sizeof out);
  return out;
}

template <class V>
V read(const char* slot) {
  V value;
  std::memcpy(&value, slot, sizeof value);
  return value;
}

// ---- scheduling ----

// Runs every lane of a warp that can run; false when none could.
inline bool step_warp(int warp) {
  bool ran = false;
  for (int t = warp * 32; t < std::min(block.threads, warp * 32 + 32); t++) {
    Fiber& fiber = block.fibers[t];
    if (!fiber.runnable()) continue;
    ran = true;
    block.current = &fiber;
    switch_context(block.scheduler, fiber.context);
    if (block.fault != nullptr) return false;
  }
  return ran;
}

inline void run_block(std::mt19937& random) {
  const bool run_ahead = (mode & 2) != 0;
  std::vector<int> order(block.mailboxes.size());
  std::iota(order.begin(), order.end(), 0);
  while (true) {
    std::shuffle(order.begin(), order.end(), random);
    bool ran = false;
    for (int warp : order) {
      bool stepped = step_warp(warp);
      ran |= stepped;
      while (run_ahead && stepped) stepped = step_warp(warp);
      if (block.fault != nullptr) return;
    }
    if (ran) continue;
    for (const Fiber& fiber : block.fibers)
      if (!fiber.done) block.fault = "deadlock: a barrier or warp operation that not all threads reach";
    return;
  }
}

// Stacks live as long as the process and are used again by every block; untouched pages cost nothing.
inline char* stack_of(int thread) {
  static std::vector<char*> stacks;
  while (static_cast<int>(stacks.size()) <= thread) {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    stacks.push_back(static_cast<char*>(memory));
  }
  return stacks[thread];
}

template <class Call>
const char* run(dim3 grid, int threads, size_t shared_bytes, Call call) {
  if (threads % 32 != 0 || threads > 1024) return "a block must be of whole warps, at most 1024 threads";
  std::mt19937 random(seed);
  // Exactly this many bytes, so that a sanitizer sees what runs past them.
  const size_t rounded = (shared_bytes + 127) / 128 * 128;
  std::unique_ptr<char, decltype(&std::free)> shared(
      static_cast<char*>(std::aligned_alloc(128, std::max<size_t>(rounded, 128))), &std::free);
  block.grid = grid;
  block.threads = threads;
  block.shared = shared.get();
  block.shared_bytes = shared_bytes;
  block.body = call;
  block.fault = nullptr;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        block.index = dim3(x, y, z);
        std::memset(shared.get(), 0xff, rounded);  // NaN in every format
        block.fibers.assign(threads, Fiber());
        block.mailboxes.assign(threads / 32, Mailbox());
        block.at_barrier = 0;
        block.barrier_generation = 0;
        for (int t = 0; t < threads; t++) {
          block.fibers[t].thread = t;
          make_context(block.fibers[t].context, stack_of(t), fiber_main);
        }
        run_block(random);
        if (block.fault != nullptr) return block.fault;
      }
  return nullptr;
}

}  // namespace mw::emulator
