// Launches kernels on CUDA. Host code alone: the emulator has a `launch` of its own.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace mw {

namespace launching {

// How a kernel starts on a device: after the one before it, or overlapping it (programmatic dependent launch).
enum class Start : int { unknown = 0, serial, overlapping };

// On devices past this number a kernel is set up at every launch.
constexpr int kDevices = 64;

// Whether an error is of earlier work, whose context is lost: every later call returns it, whoever makes it.
inline bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure: return true;
    default: return false;
  }
}

// Returns a text that is valid until this thread's next error, and takes the error off the runtime's record, so that
// nobody else is blamed for it. A sticky error comes back with the next call, here or elsewhere. The text has no colon,
// since launch functions refuse a tile by `kernel: reason`, which is no failure.
inline const char* explain(const void* kernel, cudaError_t error) {
  thread_local char text[512];
  const char* name = nullptr;
  if (cudaFuncGetName(&name, kernel) != cudaSuccess || name == nullptr) name = "unnamed kernel";
  (void)cudaGetLastError();
  const char* whose = is_sticky(error) ? "earlier work on the device failed, " : "";
  std::snprintf(text, sizeof text, "%s%s (%s), launching %s", whose, cudaGetErrorString(error),
                cudaGetErrorName(error), name);
  return text;
}

// Allows a kernel all shared memory that the device gives a block, less what its code has already. The values are the
// same for all launches: two threads may set them at once, and no launch lowers what another one needs.
inline cudaError_t set_up(const void* kernel, int device, Start& start) {
  cudaFuncAttributes code{};
  cudaError_t error = cudaFuncGetAttributes(&code, kernel);
  int limit = 0;
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  limit -= static_cast<int>(code.sharedSizeBytes);
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
  constexpr cudaFuncAttribute carveout = cudaFuncAttributePreferredSharedMemoryCarveout;
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, carveout, cudaSharedmemCarveoutMaxShared);
  // Code for an older architecture, which a newer device may run by way of PTX, does not wait for earlier kernels.
  const char* pdl = std::getenv("MILKWEED_PDL");
  const bool overlaps = code.ptxVersion >= 90 && (pdl == nullptr || std::strcmp(pdl, "0") != 0);
  start = overlaps ? Start::overlapping : Start::serial;
  return error;
}

// Sets up a kernel at its first launch on a device; all later ones cost a load of its entry here.
template <auto kernel>
cudaError_t set_up_once(int device, Start& start) {
  static std::atomic<Start> known[kDevices] = {};
  start = device < kDevices ? known[device].load(std::memory_order_acquire) : Start::unknown;
  if (start != Start::unknown) return cudaSuccess;
  const cudaError_t error = set_up(reinterpret_cast<const void*>(kernel), device, start);
  if (error == cudaSuccess && device < kDevices) known[device].store(start, std::memory_order_release);
  return error;
}

}  // namespace launching

// Launches a kernel that takes one struct by value; returns nullptr, or a text that says what CUDA refused.
//
// The launch's own result is judged, not the last error, which may be anybody's: an earlier error that is not sticky
// is neither reported here nor cleared.
template <auto kernel, class Args>
const char* launch(dim3 grid, int threads, size_t shared_bytes, void* stream, const Args& args) {
  // cudaLaunchKernelExC copies as many bytes as the kernel's parameter has, whatever it is given.
  static_assert(std::is_same_v<decltype(kernel), void (*)(Args)>, "the argument is not of the kernel's type");
  const void* address = reinterpret_cast<const void*>(kernel);
  int device = 0;
  launching::Start start = launching::Start::unknown;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = launching::set_up_once<kernel>(device, start);
  if (error != cudaSuccess) return launching::explain(address, error);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = start == launching::Start::overlapping ? 1 : 0;
  void* parameters[] = {const_cast<Args*>(&args)};
  error = cudaLaunchKernelExC(&config, address, parameters);
  return error == cudaSuccess ? nullptr : launching::explain(address, error);
}

}  // namespace mw
