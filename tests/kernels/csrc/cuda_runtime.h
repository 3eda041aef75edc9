// A CUDA runtime for tests of launch.cuh: two devices, functions as kernels, and errors on request; nothing runs.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorECCUncorrectable = 214,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout,
};
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
constexpr int cudaSharedmemCarveoutMaxShared = 100;
using cudaStream_t = struct CUstream_st*;

struct cudaFuncAttributes {
  size_t sharedSizeBytes;
  int ptxVersion;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace fake {

constexpr size_t kDefaultLimit = 48 * 1024;
constexpr int kOptin = 227 * 1024;

using Function = std::pair<const void*, int>;  // a kernel on a device

inline std::mutex lock;
inline std::map<Function, size_t> limit;  // of dynamic shared memory
inline std::map<Function, int> carveout;
inline size_t static_bytes = 0;           // of shared memory that a kernel's code has
inline int ptx_version = 90, settings = 0, launches = 0, lowered = 0;
inline bool overlapped = false;               // the last launch
inline cudaError_t sticky = cudaSuccess;      // of a lost context
inline thread_local int device = 0;
inline thread_local cudaError_t last = cudaSuccess;

// What a call of the runtime returns: its own error, or the one that has lost the context.
inline cudaError_t result(cudaError_t own) {
  const cudaError_t error = sticky != cudaSuccess ? sticky : own;
  if (error != cudaSuccess) last = error;
  return error;
}

}  // namespace fake

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidValue ? "invalid argument" : "an illegal memory access was encountered";
}
inline const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInvalidValue ? "cudaErrorInvalidValue" : "cudaErrorIllegalAddress";
}
inline cudaError_t cudaGetLastError() {
  const cudaError_t error = fake::last;
  fake::last = cudaSuccess;
  return error;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = fake::device;
  return fake::result(cudaSuccess);
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = fake::kOptin;
  return fake::result(cudaSuccess);
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {fake::static_bytes, fake::ptx_version};
  return fake::result(cudaSuccess);
}
inline cudaError_t cudaFuncGetName(const char** name, const void*) {
  *name = "the_kernel";
  return fake::result(cudaSuccess);
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const std::lock_guard guard(fake::lock);
  fake::settings++;
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
    fake::carveout[{kernel, fake::device}] = value;
    return fake::result(cudaSuccess);
  }
  if (static_cast<size_t>(value) + fake::static_bytes > fake::kOptin) return fake::result(cudaErrorInvalidValue);
  size_t& limit = fake::limit[{kernel, fake::device}];
  if (static_cast<size_t>(value) < limit) fake::lowered++;
  limit = static_cast<size_t>(value);
  return fake::result(cudaSuccess);
}
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  const std::lock_guard guard(fake::lock);
  const auto set = fake::limit.find({kernel, fake::device});
  const size_t limit = set == fake::limit.end() ? fake::kDefaultLimit : set->second;
  if (config->dynamicSmemBytes > limit) return fake::result(cudaErrorInvalidValue);
  fake::launches++;
  fake::overlapped = config->numAttrs == 1 && config->attrs->val.programmaticStreamSerializationAllowed == 1;
  return fake::result(cudaSuccess);
}
