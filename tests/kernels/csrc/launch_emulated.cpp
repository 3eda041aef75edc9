// The launches of launch.cuh on the fake runtime of cuda_runtime.h, for ctypes.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

// Hidden, so that copies of this library do not share their state.
#pragma GCC visibility push(hidden)
#include "launch.cuh"
#pragma GCC visibility pop

namespace {

struct Args {
  int value;
};

template <int number>
void kernel(const Args) {}

}  // namespace

extern "C" {

const char* mw_launch(int number, int device, int shared_bytes) {
  fake::device = device;
  const size_t bytes = static_cast<size_t>(shared_bytes);
  return number == 0 ? mw::launch<&kernel<0>>(dim3(1), 32, bytes, nullptr, Args{})
                     : mw::launch<&kernel<1>>(dim3(1), 32, bytes, nullptr, Args{});
}
int mw_limit(int device) { return static_cast<int>(fake::limit[{reinterpret_cast<const void*>(&kernel<0>), device}]); }
int mw_carveout(int device) { return fake::carveout[{reinterpret_cast<const void*>(&kernel<0>), device}]; }
int mw_settings() { return fake::settings; }
int mw_launches() { return fake::launches; }
int mw_lowered() { return fake::lowered; }
int mw_overlapped() { return fake::overlapped; }
int mw_last_error() { return fake::last; }
void mw_with_static_memory(int bytes) { fake::static_bytes = static_cast<size_t>(bytes); }
void mw_compiled_for(int ptx_version) { fake::ptx_version = ptx_version; }
// An error that someone else's call has left, and one that has lost the context.
void mw_leave_error(int error) { fake::last = static_cast<cudaError_t>(error); }
void mw_lose_context(int error) { fake::sticky = static_cast<cudaError_t>(error); }
}
