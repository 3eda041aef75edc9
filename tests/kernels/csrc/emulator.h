// The CPU side of primitives.cuh: runs a CUDA kernel's own source under a host compiler, one fiber a thread.
//
// It is made to catch what a GPU may hide. Shared memory starts as NaN. Copies land either at once or as late as the
// programming model allows (`eager`); warps advance either in turn, in shuffled order, or one runs ahead to its next
// block barrier before any other moves (`run ahead`): the two switches make four modes, and a missing wait or
// barrier shows as a wrong result in at least one. Misaligned or out-of-range accesses, barriers that not all threads
// reach, warp operations that not all lanes reach and accesses before the wait for earlier kernels end the launch with
// a text. Bank conflicts and time are not emulated.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulated_block.h"
#include "emulated_numbers.h"

#define MW_DEVICE inline
#define MW_GLOBAL(threads, min_blocks) inline void
#define MW_UNROLL

namespace mw {

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

inline void wait_on_dependent_grids() { emulator::block.current->waited = true; }
inline void launch_dependent_grids() {
  if (!emulator::block.current->waited) emulator::fail("launch_dependent_grids before wait_on_dependent_grids");
}

inline void load_16(uint32_t (&value)[4], const void* global) {
  emulator::check_waited();
  if (!emulator::aligned(global)) emulator::fail("load_16: address is not 16-byte aligned");
  std::memcpy(value, global, 16);
}
inline void store_16(void* global, const uint32_t (&value)[4]) {
  emulator::check_waited();
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
  emulator::check_waited();
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
