// Checks of tensors before a launch, which all operators share; an error names the wrong value.
//
// They use PyTorch's stable ABI alone, so that one binary loads in every PyTorch from 2.10 on. An error is a
// std::runtime_error, which Python sees as a RuntimeError; nothing is launched then.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "primitives.cuh"

namespace mw::host {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Shape = std::initializer_list<int64_t>;

// Alignment of addresses for vectorised access, bytes.
constexpr uintptr_t kAlignment = 16;

template <class Sizes>
std::string shape_text(const Sizes& sizes) {
  std::ostringstream text;
  const char* separator = "(";
  for (const int64_t size : sizes) {
    text << separator << size;
    separator = ", ";
  }
  text << (sizes.size() == 0 ? "()" : ")");
  return text.str();
}

inline const char* dtype_text(ScalarType type) {
  switch (type) {
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Half: return "float16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    default: return "of another number type";
  }
}

// One call of an operator: its first tensor decides device and number type, all others must agree.
class Call {
 public:
  Call(const char* op, const char* name, const Tensor& first)
      : op_(op), first_(first), device_(checked_device(name, first)), guard_(device_) {
    const ScalarType type = first.scalar_type();
    require(type == ScalarType::BFloat16 || type == ScalarType::Half, name, " is ", dtype_text(type),
            ": bfloat16 or float16 is needed");
    dtype_ = type == ScalarType::BFloat16 ? DType::bf16 : DType::fp16;
  }

  DType dtype() const { return dtype_; }

  template <class... Parts>
  void require(bool holds, const Parts&... parts) const {
    if (!holds) refuse(parts...);
  }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    std::ostringstream text;
    text << op_ << ": ";
    (text << ... << parts);
    throw std::runtime_error(text.str());
  }

  // A size, as the kernels count: 32 bits.
  int size(int64_t value, const char* name) const {
    require(value >= 0 && value <= std::numeric_limits<int>::max(), name, " is ", value, ": 0 to 2147483647 is taken");
    return static_cast<int>(value);
  }

  void rank(const Tensor& tensor, const char* name, int64_t dims) const {
    if (tensor.dim() != dims)
      refuse(name, " has shape ", shape_text(tensor.sizes()), ": ", dims, " dimensions are needed");
  }

  // The address of a tensor of the call's number type and exactly this shape.
  const void* data(const Tensor& tensor, const char* name, Shape shape) const {
    return checked(tensor, name, shape, dtype_ == DType::bf16 ? ScalarType::BFloat16 : ScalarType::Half);
  }
  const float* float_data(const Tensor& tensor, const char* name, Shape shape) const {
    return static_cast<const float*>(checked(tensor, name, shape, ScalarType::Float));
  }
  // nullptr where there is none.
  const void* data(const std::optional<Tensor>& tensor, const char* name, Shape shape) const {
    return tensor ? data(*tensor, name, shape) : nullptr;
  }
  const float* float_data(const std::optional<Tensor>& tensor, const char* name, Shape shape) const {
    return tensor ? float_data(*tensor, name, shape) : nullptr;
  }

  Tensor new_output(Shape shape) const { return torch::stable::new_empty(first_, shape); }
  Tensor new_output(Shape shape, ScalarType type) const { return torch::stable::new_empty(first_, shape, type); }

  // The stream that PyTorch works on, which is also the one a CUDA graph captures.
  Stream stream() const {
    void* stream = nullptr;
    require(aoti_torch_get_current_cuda_stream(device_, &stream) == 0, "PyTorch gives no CUDA stream");
    return stream;
  }

  // The runtime keeps the device's attributes, so asking costs no call of the driver.
  int multiprocessors() const { return attribute(cudaDevAttrMultiProcessorCount); }
  // Bytes of shared memory that one block may have.
  int shared_limit() const { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

  // Refuses unless a launch returned nullptr.
  void check_launch(const char* error) const {
    if (error != nullptr) refuse("not launched: ", error);
  }

 private:
  int checked_device(const char* name, const Tensor& tensor) const {
    require(tensor.is_cuda(), name, " is not on a CUDA device");
    return tensor.get_device_index();
  }

  const void* checked(const Tensor& tensor, const char* name, Shape shape, ScalarType type) const {
    require(tensor.is_cuda(), name, " is not on a CUDA device");
    require(tensor.get_device_index() == device_, name, " is on CUDA device ", tensor.get_device_index(),
            ", the first tensor on ", device_);
    require(tensor.scalar_type() == type, name, " is ", dtype_text(tensor.scalar_type()), ": ", dtype_text(type),
            " is needed");
    if (!same(tensor, shape))
      refuse(name, " has shape ", shape_text(tensor.sizes()), ": ", shape_text(shape), " is needed");
    if (!tensor.is_contiguous()) refuse(name, " is not contiguous: its strides are ", shape_text(tensor.strides()));
    const void* address = tensor.const_data_ptr();
    require(reinterpret_cast<uintptr_t>(address) % kAlignment == 0, name, " begins ",
            reinterpret_cast<uintptr_t>(address) % kAlignment, " bytes after a multiple of ", kAlignment,
            ": it must begin at one");
    return address;
  }

  static bool same(const Tensor& tensor, Shape shape) {
    if (tensor.dim() != static_cast<int64_t>(shape.size())) return false;
    int64_t dim = 0;
    for (const int64_t size : shape) {
      if (tensor.size(dim++) != size) return false;
    }
    return true;
  }

  int attribute(cudaDeviceAttr attribute) const {
    int value = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&value, attribute, device_);
    if (error != cudaSuccess) (void)cudaGetLastError();  // reported here, so nobody else is to find it
    require(error == cudaSuccess, "a device attribute cannot be read: ", cudaGetErrorString(error));
    return value;
  }

  const char* op_;
  const Tensor& first_;
  int device_;
  torch::stable::accelerator::DeviceGuard guard_;
  DType dtype_ = DType::bf16;
};

}  // namespace mw::host
