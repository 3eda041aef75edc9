// The CPU side of primitives.cuh: runs a CUDA kernel's own source under a host compiler, one fiber a thread.
//
// It is made to catch what a GPU may hide. Shared memory starts as NaN. Copies land either at once or as late as the
// programming model allows (`eager`); warps advance either in turn, in shuffled order, or one runs ahead to its next
// block barrier before any other moves (`run ahead`): the two switches make four modes, and a missing wait or
// barrier shows as a wrong result in at least one. Misaligned or out-of-range accesses, barriers that not all threads
// reach and warp operations that not all lanes reach end the launch with a text. Bank conflicts and time are not
// emulated.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
#define MW_UCONTEXT 1
#include <ucontext.h>
#endif

#define MW_DEVICE inline
#define MW_GLOBAL(threads, min_blocks) inline void
#define MW_UNROLL

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace mw::emulator {

inline int mode = 0;  // bit 0: copies land at once; bit 1: one warp runs ahead
inline unsigned seed = 1;

// ---- fibers: stacks that take turns on this thread ----

constexpr size_t kStackBytes = 256 * 1024;

#ifdef MW_UCONTEXT
struct Context {
  ucontext_t state;
};
inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }
inline void make_context(Context& context, char* stack, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = kStackBytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}
#else
// swapcontext makes a system call each time, which was most of the emulator's time; this saves what the System V ABI
// says a callee must.
extern "C" __attribute__((visibility("hidden"))) void mw_switch_stack(void** save, void* load);
asm(R"(
.text
.hidden mw_switch_stack
.weak mw_switch_stack
.type mw_switch_stack, @function
mw_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
struct Context {
  void* stack = nullptr;
};
inline void switch_context(Context& from, Context& to) { mw_switch_stack(&from.stack, to.stack); }
inline void make_context(Context& context, char* stack, void (*entry)()) {
  // What mw_switch_stack takes off: six registers, then where to return to, which is 16-byte aligned because a
  // function expects its stack to be so before the call that pushed its return address.
  auto* top = reinterpret_cast<void**>(stack + kStackBytes - 64);
  top[0] = reinterpret_cast<void*>(entry);
  top[1] = nullptr;
  for (int i = 1; i <= 6; i++) top[-i] = nullptr;
  context.stack = top - 6;
}
#endif

struct Copy {
  char* to;
  const char* from;
  bool valid;
};

struct Fiber {
  Context context;
  int thread = 0;
  bool done = false;
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

inline void check_shared(const void* pointer, size_t bytes) {
  const auto* p = static_cast<const char*>(pointer);
  if (p < block.shared || p + bytes > block.shared + block.shared_bytes) fail("shared memory: address out of range");
  if (!aligned(p)) fail("shared memory: address is not 16-byte aligned");
}

inline void fiber_main() {
  block.body();
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

// ---- number formats ----

inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float fp16_to_float_slowly(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

inline float fp16_to_float(uint16_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (int i = 0; i < 65536; i++) values[i] = fp16_to_float_slowly(static_cast<uint16_t>(i));
    return values;
  }();
  return table[bits];
}

inline uint16_t float_to_fp16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude == 0.0f) return sign;
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // rounds to infinity
  int exponent;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // exponent of the last place
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));  // ties to even
  if (unit == -24) return static_cast<uint16_t>(sign | steps);  // subnormal, or 1024 = the smallest normal
  return static_cast<uint16_t>(sign | (steps + ((unit + 24) << 10)));
}

}  // namespace mw::emulator

namespace mw {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

inline float to_float(bf16 value) { return emulator::bf16_to_float(value.bits); }
inline float to_float(fp16 value) { return emulator::fp16_to_float(value.bits); }

template <class T>
T from_float(float value);
template <>
inline bf16 from_float<bf16>(float value) { return {emulator::float_to_bf16(value)}; }
template <>
inline fp16 from_float<fp16>(float value) { return {emulator::float_to_fp16(value)}; }

template <class T>
uint32_t pack2(float low, float high) {
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}
template <class T>
void unpack2(uint32_t packed, float& low, float& high) {
  low = to_float(T{static_cast<uint16_t>(packed & 0xffffu)});
  high = to_float(T{static_cast<uint16_t>(packed >> 16)});
}

inline float infinity() { return INFINITY; }

inline int thread_index() { return emulator::block.current->thread; }
inline int lane() { return thread_index() % 32; }
inline int warp() { return thread_index() / 32; }
inline int block_x() { return static_cast<int>(emulator::block.index.x); }
inline int block_y() { return static_cast<int>(emulator::block.index.y); }
inline int block_z() { return static_cast<int>(emulator::block.index.z); }
inline int grid_x() { return static_cast<int>(emulator::block.grid.x); }
inline int grid_y() { return static_cast<int>(emulator::block.grid.y); }
inline int grid_z() { return static_cast<int>(emulator::block.grid.z); }
inline char* shared_memory() { return emulator::block.shared; }

inline void sync_block() {
  auto& block = emulator::block;
  if (++block.at_barrier == block.threads) {
    block.at_barrier = 0;
    block.barrier_generation++;
  } else {
    emulator::wait_for(block.barrier_generation, block.barrier_generation);
  }
}
inline void sync_warp() {
  emulator::collective<char, char>('\0', [](emulator::Mailbox&) {});
}

template <class V>
V exchange(V value, int source_lane) {
  struct Request {
    V value;
    int source;
  };
  return emulator::collective<Request, V>({value, source_lane & 31}, [](emulator::Mailbox& box) {
    for (int i = 0; i < 32; i++)
      std::memcpy(box.out[i], box.in[emulator::read<Request>(box.in[i]).source], sizeof(V));
  });
}
inline float shuffle(float value, int source_lane) { return exchange(value, source_lane); }
inline uint32_t shuffle(uint32_t value, int source_lane) { return exchange(value, source_lane); }
inline float shuffle_xor(float value, int lane_mask) { return exchange(value, lane() ^ lane_mask); }
inline uint32_t shuffle_xor(uint32_t value, int lane_mask) { return exchange(value, lane() ^ lane_mask); }

inline void load_16(uint32_t (&value)[4], const void* global) {
  if (!emulator::aligned(global)) emulator::fail("load_16: address is not 16-byte aligned");
  std::memcpy(value, global, 16);
}
inline void store_16(void* global, const uint32_t (&value)[4]) {
  if (!emulator::aligned(global)) emulator::fail("store_16: address is not 16-byte aligned");
  std::memcpy(global, value, 16);
}

namespace emulator {
inline void perform(const Copy& copy) {
  if (copy.valid)
    std::memcpy(copy.to, copy.from, 16);
  else
    std::memset(copy.to, 0, 16);
}
}  // namespace emulator

inline void copy_async_16(void* shared, const void* global, bool valid) {
  emulator::check_shared(shared, 16);
  if (valid && !emulator::aligned(global)) emulator::fail("copy_async_16: global address is not 16-byte aligned");
  const emulator::Copy copy{static_cast<char*>(shared), static_cast<const char*>(global), valid};
  if ((emulator::mode & 1) != 0)
    emulator::perform(copy);
  else
    emulator::block.current->open.push_back(copy);
}
inline void copy_async_commit() {
  auto& fiber = *emulator::block.current;
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}
template <int pending>
void copy_async_wait() {
  auto& groups = emulator::block.current->groups;
  while (static_cast<int>(groups.size()) > pending) {
    for (const auto& copy : groups.front()) emulator::perform(copy);
    groups.erase(groups.begin());
  }
}

namespace emulator {
struct Registers4 {
  uint32_t r[4];
};

// Lane l's register j holds two numbers of matrix j: of row l/4 at column 2(l%4), or transposed.
inline void load_matrices(uint32_t (&r)[4], const void* row, bool transposed) {
  check_shared(row, 16);
  struct Request {
    const uint16_t* row;
    bool transposed;
  };
  const Request request{static_cast<const uint16_t*>(row), transposed};
  const auto result = collective<Request, Registers4>(request, [](Mailbox& box) {
    for (int lane = 0; lane < 32; lane++) {
      uint16_t pairs[4][2];
      for (int matrix = 0; matrix < 4; matrix++)
        for (int i = 0; i < 2; i++) {
          const int major = lane / 4, minor = 2 * (lane % 4) + i;
          const auto first = read<Request>(box.in[matrix * 8]);
          const int at_row = first.transposed ? minor : major, at_column = first.transposed ? major : minor;
          pairs[matrix][i] = read<Request>(box.in[matrix * 8 + at_row]).row[at_column];
        }
      std::memcpy(box.out[lane], pairs, sizeof pairs);
    }
  });
  std::memcpy(r, result.r, sizeof result.r);
}
}  // namespace emulator

template <class T>
void ldmatrix_x4(uint32_t (&r)[4], const T* row) {
  emulator::load_matrices(r, row, false);
}
template <class T>
void ldmatrix_x4_trans(uint32_t (&r)[4], const T* row) {
  emulator::load_matrices(r, row, true);
}

namespace emulator {
struct Product {
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
};

// The fragment layouts of PTX mma.m16n8k16: lane l has rows l/4 and l/4 + 8, columns from 2(l%4).
template <class T>
void multiply(Mailbox& box) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; lane++) {
    const auto in = read<Product>(box.in[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; i++) {
      float* to = &a[group + 8 * (i % 2)][pair + 8 * (i / 2)];
      unpack2<T>(in.a[i], to[0], to[1]);
    }
    for (int i = 0; i < 2; i++) unpack2<T>(in.b[i], b[pair + 8 * i][group], b[pair + 8 * i + 1][group]);
    for (int i = 0; i < 4; i++) c[group + 8 * (i / 2)][pair + i % 2] = in.c[i];
  }
  for (int k = 0; k < 16; k++)
    for (int row = 0; row < 16; row++)
      for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; lane++) {
    float out[4];
    for (int i = 0; i < 4; i++) out[i] = c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
    std::memcpy(box.out[lane], out, sizeof out);
  }
}
}  // namespace emulator

template <class T>
void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Result {
    float c[4];
  };
  const emulator::Product in{{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
  const auto result = emulator::collective<emulator::Product, Result>(in, emulator::multiply<T>);
  std::memcpy(c, result.c, sizeof result.c);
}

inline float exp2_approx(float x) { return std::exp2(x); }
inline float tanh_approx(float x) { return std::tanh(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }

template <auto kernel, class Args>
const char* launch(dim3 grid, int threads, size_t shared_bytes, Stream, const Args& args) {
  return emulator::run(grid, threads, shared_bytes, [&] { kernel(args); });
}

}  // namespace mw
