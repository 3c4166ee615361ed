// bias_relu(Tensor x, Tensor bias) -> Tensor, written against PyTorch's stable ABI.
//
// CPU and CUDA are registered here. Meta, the shape rule that PyTorch asks when it traces, is registered
// from Python (registration.py): there sizes may be symbols, which this ABI cannot hold.
#ifdef MINI_KV_WITH_CUDA
#define USE_CUDA  // without it the shim's header hides the accessor of the current CUDA stream
#endif

#include <algorithm>
#include <cstdint>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include "kernel.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Fewer elements than this are not worth waking a second thread for.
constexpr int64_t kGrainElements = 32768;

bool is_supported(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Half || type == ScalarType::BFloat16 ||
      type == ScalarType::Double;
}

// registration.py says the same sentences for Meta.
void check(const Tensor& x, const Tensor& bias) {
  STD_TORCH_CHECK(x.device() == bias.device(), "bias_relu: x and bias must be on the same device");
  STD_TORCH_CHECK(
      x.scalar_type() == bias.scalar_type(), "bias_relu: x and bias must have the same dtype");
  STD_TORCH_CHECK(
      is_supported(x.scalar_type()), "bias_relu: unsupported dtype, a floating one is needed");
  STD_TORCH_CHECK(x.dim() >= 1, "bias_relu: x must have at least 1 dimension");
  STD_TORCH_CHECK(bias.dim() == 1, "bias_relu: bias must be 1-dimensional");
  STD_TORCH_CHECK(
      bias.size(0) == x.size(x.dim() - 1), "bias_relu: bias must have the length of x's last dimension");
}

template <typename T, typename Wide>
void bias_relu_rows(const Tensor& x, const Tensor& bias, Tensor& out) {
  const int64_t hidden = bias.size(0);
  if (hidden == 0) {
    return;  // no elements, and no division by zero below
  }
  const T* x_data = static_cast<const T*>(x.const_data_ptr());
  const T* bias_data = static_cast<const T*>(bias.const_data_ptr());
  T* out_data = static_cast<T*>(out.mutable_data_ptr());
  const int64_t grain_rows = std::max<int64_t>(1, kGrainElements / hidden);
  torch::stable::parallel_for(0, x.numel() / hidden, grain_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x_data + row * hidden;
      T* to = out_data + row * hidden;
      for (int64_t i = 0; i < hidden; ++i) {
        const Wide sum = static_cast<Wide>(from[i]) + static_cast<Wide>(bias_data[i]);
        to[i] = static_cast<T>(sum < Wide{0} ? Wide{0} : sum);  // NaN is not below zero: it stays
      }
    }
  });
}

Tensor bias_relu_cpu(const Tensor& x, const Tensor& bias) {
  check(x, bias);
  const Tensor x_dense = torch::stable::contiguous(x);
  const Tensor bias_dense = torch::stable::contiguous(bias);
  Tensor out = torch::stable::new_empty(x_dense, x_dense.sizes());
  switch (x.scalar_type()) {
    case ScalarType::Half:
      bias_relu_rows<torch::headeronly::Half, float>(x_dense, bias_dense, out);
      break;
    case ScalarType::BFloat16:
      bias_relu_rows<torch::headeronly::BFloat16, float>(x_dense, bias_dense, out);
      break;
    case ScalarType::Double:
      bias_relu_rows<double, double>(x_dense, bias_dense, out);
      break;
    default:
      bias_relu_rows<float, float>(x_dense, bias_dense, out);
  }
  return out;
}

#ifdef MINI_KV_WITH_CUDA
mini_kv_fused_bias_relu_v1::Element element_of(ScalarType type) {
  using mini_kv_fused_bias_relu_v1::Element;
  switch (type) {
    case ScalarType::Half:
      return Element::kFloat16;
    case ScalarType::BFloat16:
      return Element::kBFloat16;
    case ScalarType::Double:
      return Element::kFloat64;
    default:
      return Element::kFloat32;
  }
}

Tensor bias_relu_cuda(const Tensor& x, const Tensor& bias) {
  check(x, bias);
  // The inputs may live on another GPU than the current one; allocation and launch must follow them.
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor x_dense = torch::stable::contiguous(x);
  const Tensor bias_dense = torch::stable::contiguous(bias);
  Tensor out = torch::stable::new_empty(x_dense, x_dense.sizes());

  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  const char* error = mini_kv_fused_bias_relu_v1::launch_bias_relu(
      element_of(x.scalar_type()),
      x_dense.const_data_ptr(),
      bias_dense.const_data_ptr(),
      out.mutable_data_ptr(),
      x_dense.numel(),
      bias_dense.numel(),
      stream);
  STD_TORCH_CHECK(error == nullptr, "bias_relu: CUDA error: ", error);
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(mini_kv_fused_bias_relu_v1, m) {
  m.def("bias_relu(Tensor x, Tensor bias) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mini_kv_fused_bias_relu_v1, CPU, m) {
  m.impl("bias_relu", TORCH_BOX(&bias_relu_cpu));
}

#ifdef MINI_KV_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(mini_kv_fused_bias_relu_v1, CUDA, m) {
  m.impl("bias_relu", TORCH_BOX(&bias_relu_cuda));
}
#endif
