// The few device operations that the kernels are written in, for CUDA here and for a CPU in emulator.h.
//
// Kernels use no others, so the same source runs on a GPU and, compiled by a host compiler with
// MILKWEED_EMULATE, under the emulator of tests/kernels/csrc. Instruction names are those of the PTX ISA.
#pragma once

#ifndef __CUDACC_RTC__
#include <cstddef>
#include <cstdint>
#else
using int32_t = int;
using uint32_t = unsigned int;
using uint16_t = unsigned short;
using int64_t = long long;
using uint64_t = unsigned long long;
#endif

namespace mw {

enum class DType : int { bf16 = 0, fp16 = 1 };

// A cudaStream_t, or anything where there is no GPU.
using Stream = void*;

}  // namespace mw

#ifdef MILKWEED_EMULATE
#include "emulator.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define MW_DEVICE __device__ __forceinline__
#define MW_GLOBAL(threads, min_blocks) __global__ void __launch_bounds__(threads, min_blocks)
#define MW_UNROLL _Pragma("unroll")

namespace mw {

using bf16 = __nv_bfloat16;
using fp16 = __half;

// ---- numbers: two bytes in memory, float in registers, rounded to nearest even ----

MW_DEVICE float to_float(bf16 value) { return __bfloat162float(value); }
MW_DEVICE float to_float(fp16 value) { return __half2float(value); }

template <class T>
MW_DEVICE T from_float(float value);
template <>
MW_DEVICE bf16 from_float<bf16>(float value) { return __float2bfloat16_rn(value); }
template <>
MW_DEVICE fp16 from_float<fp16>(float value) { return __float2half_rn(value); }

// Two values in one register, the lower one in the lower half.
template <class T>
MW_DEVICE uint32_t pack2(float low, float high);
template <>
MW_DEVICE uint32_t pack2<bf16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
MW_DEVICE uint32_t pack2<fp16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <class T>
MW_DEVICE void unpack2(uint32_t packed, float& low, float& high);
template <>
MW_DEVICE void unpack2<bf16>(uint32_t packed, float& low, float& high) {
  low = __uint_as_float(packed << 16);
  high = __uint_as_float(packed & 0xffff0000u);
}
template <>
MW_DEVICE void unpack2<fp16>(uint32_t packed, float& low, float& high) {
  low = __half2float(__ushort_as_half(static_cast<unsigned short>(packed & 0xffffu)));
  high = __half2float(__ushort_as_half(static_cast<unsigned short>(packed >> 16)));
}

MW_DEVICE float infinity() { return __uint_as_float(0x7f800000u); }

// ---- indexes of this thread ----

MW_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
MW_DEVICE int lane() { return static_cast<int>(threadIdx.x & 31u); }
MW_DEVICE int warp() { return static_cast<int>(threadIdx.x >> 5); }
MW_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
MW_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
MW_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
MW_DEVICE int grid_x() { return static_cast<int>(gridDim.x); }
MW_DEVICE int grid_y() { return static_cast<int>(gridDim.y); }
MW_DEVICE int grid_z() { return static_cast<int>(gridDim.z); }

// Dynamic shared memory of the block, 128-byte aligned.
MW_DEVICE char* shared_memory() {
  extern __shared__ __align__(128) char mw_shared[];
  return mw_shared;
}
MW_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- synchronisation and shuffles ----

MW_DEVICE void sync_block() { __syncthreads(); }
MW_DEVICE void sync_warp() { __syncwarp(); }
MW_DEVICE float shuffle_xor(float value, int lane_mask) { return __shfl_xor_sync(0xffffffffu, value, lane_mask); }
MW_DEVICE uint32_t shuffle_xor(uint32_t value, int lane_mask) { return __shfl_xor_sync(0xffffffffu, value, lane_mask); }
MW_DEVICE float shuffle(float value, int source_lane) { return __shfl_sync(0xffffffffu, value, source_lane); }
MW_DEVICE uint32_t shuffle(uint32_t value, int source_lane) { return __shfl_sync(0xffffffffu, value, source_lane); }

// ---- the order of kernels ----

// Waits until all earlier kernels have ended and what they wrote can be seen. From sm_90 on, a kernel may start before
// that, so every thread calls this before it reads what an earlier kernel wrote or writes what one may still read.
MW_DEVICE void wait_on_dependent_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Allows the next kernel to start once all blocks have come here or ended; it then waits as above. A kernel calls this
// after its own wait, so that no more than two kernels are under way.
MW_DEVICE void launch_dependent_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- memory, 16 bytes at a time ----

MW_DEVICE void load_16(uint32_t (&value)[4], const void* global) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
               : "l"(global));
}
MW_DEVICE void store_16(void* global, const uint32_t (&value)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value[0]), "r"(value[1]), "r"(value[2]),
               "r"(value[3])
               : "memory");
}

// Asynchronous copy of 16 bytes to shared memory; zeros instead, and no read, where it is not `valid`.
MW_DEVICE void copy_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
MW_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's groups are under way.
template <int pending>
MW_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- tensor cores ----

// Four 8x8 matrices of two-byte numbers; lane i gives the address of row i % 8 of matrix i / 8.
template <class T>
MW_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
template <class T>
MW_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// c += a b for a 16x16 (row major) and b 16x8 (column major), fp32 accumulation (PTX mma.m16n8k16).
template <class T>
MW_DEVICE void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
MW_DEVICE void mma_16x8x16<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
MW_DEVICE void mma_16x8x16<fp16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- special functions ----

MW_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MW_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MW_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace mw

#ifndef __CUDACC_RTC__
#include "launch.cuh"
#endif

#endif  // MILKWEED_EMULATE

namespace mw {

constexpr float kLog2E = 1.4426950408889634f;

// Vectors that are loaded and stored at once.
struct alignas(8) Float2 {
  float v[2];
};
struct alignas(16) Float4 {
  float v[4];
};
struct alignas(16) Words4 {
  uint32_t v[4];
};

MW_DEVICE void load_shared_16(uint32_t (&to)[4], const void* shared) {
  const Words4 from = *static_cast<const Words4*>(shared);
  MW_UNROLL
  for (int i = 0; i < 4; i++) to[i] = from.v[i];
}
MW_DEVICE void store_shared_16(void* shared, const uint32_t (&from)[4]) {
  Words4 to;
  MW_UNROLL
  for (int i = 0; i < 4; i++) to.v[i] = from[i];
  *static_cast<Words4*>(shared) = to;
}

MW_DEVICE float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}

// Whether a pointer is not 16-byte aligned. nullptr is.
template <class... T>
bool misaligned(const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 != 0) || ...);
}

// `factor` times x(a + b x^2 + c x^4), which is logit(normal CDF(x)) to a GELU error of 2.5e-5 everywhere; x^2 is held
// where the polynomial is still increasing (|x| = 7, where GELU is x or 0 to 1e-11).
MW_DEVICE float gelu_logit(float x, float factor) {
  const float square = fminf(x * x, 49.0f);
  return x * fmaf(square, fmaf(square, -7.03033584e-4f * factor, 7.40112921e-2f * factor), 1.59501577f * factor);
}

// GELU with the exact normal CDF (not its tanh form), to the rounding of T: bf16 takes one special function, whose
// relative error is 2^-11, fp16 takes two, whose error is that of float.
template <class T>
MW_DEVICE float gelu(float x);
template <>
MW_DEVICE float gelu<bf16>(float x) {
  const float half = 0.5f * x;
  return fmaf(half, tanh_approx(gelu_logit(x, 0.5f)), half);
}
template <>
MW_DEVICE float gelu<fp16>(float x) {
  return x * reciprocal_approx(1.0f + exp2_approx(gelu_logit(x, -kLog2E)));
}

MW_DEVICE float silu(float x) { return x * reciprocal_approx(1.0f + exp2_approx(-kLog2E * x)); }

}  // namespace mw
