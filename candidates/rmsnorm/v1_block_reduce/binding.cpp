// rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor, written against PyTorch's stable ABI.
//
// CPU and CUDA are registered here. Meta, the shape rule that PyTorch asks when it traces, is registered
// from Python (registration.py): there sizes may be symbols, which this ABI cannot hold.
#ifdef MINI_KV_WITH_CUDA
#define USE_CUDA  // without it the shim's header hides the accessor of the current CUDA stream
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

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
constexpr int64_t kGrainElements = 16384;
// Partial sums kept side by side: they fill vector registers, and they round less than a single one.
constexpr int64_t kLanes = 16;

bool is_supported(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Half || type == ScalarType::BFloat16 ||
      type == ScalarType::Double;
}

// registration.py says the same sentences for Meta. An eps of zero is refused too: a row of zeros
// would come out as NaN.
void check(const Tensor& x, const Tensor& weight, double eps) {
  STD_TORCH_CHECK(x.device() == weight.device(), "rmsnorm: x and weight must be on the same device");
  STD_TORCH_CHECK(
      x.scalar_type() == weight.scalar_type(), "rmsnorm: x and weight must have the same dtype");
  STD_TORCH_CHECK(is_supported(x.scalar_type()), "rmsnorm: unsupported dtype, a floating one is needed");
  STD_TORCH_CHECK(x.dim() >= 1, "rmsnorm: x must have at least 1 dimension");
  STD_TORCH_CHECK(weight.dim() == 1, "rmsnorm: weight must be 1-dimensional");
  STD_TORCH_CHECK(
      weight.size(0) == x.size(x.dim() - 1),
      "rmsnorm: weight must have the length of x's last dimension");
  STD_TORCH_CHECK(std::isfinite(eps) && eps > 0, "rmsnorm: eps must be positive and finite");
}

template <typename T, typename Wide>
Wide sum_of_squares(const T* row, int64_t hidden) {
  Wide partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const Wide v = static_cast<Wide>(row[i + lane]);
      partial[lane] += v * v;
    }
  }
  Wide sum = 0;
  for (; i < hidden; ++i) {
    const Wide v = static_cast<Wide>(row[i]);
    sum += v * v;
  }
  for (const Wide lane_sum : partial) {
    sum += lane_sum;
  }
  return sum;
}

template <typename T, typename Wide>
void rmsnorm_rows(const Tensor& x, const Tensor& weight, Tensor& out, double eps) {
  const int64_t hidden = weight.size(0);
  if (hidden == 0) {
    return;  // no elements, and no division by zero below
  }
  const T* x_data = static_cast<const T*>(x.const_data_ptr());
  // Widened once, not once a row: converting a half costs more than the product it takes part in.
  const T* narrow_weight = static_cast<const T*>(weight.const_data_ptr());
  const std::vector<Wide> weight_data(narrow_weight, narrow_weight + hidden);
  T* out_data = static_cast<T*>(out.mutable_data_ptr());
  const int64_t grain_rows = std::max<int64_t>(1, kGrainElements / hidden);
  torch::stable::parallel_for(0, x.numel() / hidden, grain_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x_data + row * hidden;
      T* to = out_data + row * hidden;
      const Wide mean = sum_of_squares<T, Wide>(from, hidden) / static_cast<Wide>(hidden);
      const Wide inverse_rms = Wide{1} / std::sqrt(mean + static_cast<Wide>(eps));
      for (int64_t i = 0; i < hidden; ++i) {
        const Wide v = static_cast<Wide>(from[i]) * inverse_rms;
        to[i] = static_cast<T>(v * weight_data[i]);
      }
    }
  });
}

Tensor rmsnorm_cpu(const Tensor& x, const Tensor& weight, double eps) {
  check(x, weight, eps);
  const Tensor x_dense = torch::stable::contiguous(x);
  const Tensor weight_dense = torch::stable::contiguous(weight);
  Tensor out = torch::stable::new_empty(x_dense, x_dense.sizes());
  switch (x.scalar_type()) {
    case ScalarType::Half:
      rmsnorm_rows<torch::headeronly::Half, float>(x_dense, weight_dense, out, eps);
      break;
    case ScalarType::BFloat16:
      rmsnorm_rows<torch::headeronly::BFloat16, float>(x_dense, weight_dense, out, eps);
      break;
    case ScalarType::Double:
      rmsnorm_rows<double, double>(x_dense, weight_dense, out, eps);
      break;
    default:
      rmsnorm_rows<float, float>(x_dense, weight_dense, out, eps);
  }
  return out;
}

#ifdef MINI_KV_WITH_CUDA
mini_kv_rmsnorm_v1::Element element_of(ScalarType type) {
  using mini_kv_rmsnorm_v1::Element;
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

Tensor rmsnorm_cuda(const Tensor& x, const Tensor& weight, double eps) {
  check(x, weight, eps);
  // The inputs may live on another GPU than the current one; allocation and launch must follow them.
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor x_dense = torch::stable::contiguous(x);
  const Tensor weight_dense = torch::stable::contiguous(weight);
  Tensor out = torch::stable::new_empty(x_dense, x_dense.sizes());
  const int64_t hidden = weight_dense.numel();
  const int64_t rows = hidden == 0 ? 0 : x_dense.numel() / hidden;

  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  const char* error = mini_kv_rmsnorm_v1::launch_rmsnorm(
      element_of(x.scalar_type()),
      x_dense.const_data_ptr(),
      weight_dense.const_data_ptr(),
      out.mutable_data_ptr(),
      rows,
      hidden,
      eps,
      stream);
  STD_TORCH_CHECK(error == nullptr, "rmsnorm: CUDA error: ", error);
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(mini_kv_rmsnorm_v1, m) {
  m.def("rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mini_kv_rmsnorm_v1, CPU, m) { m.impl("rmsnorm", TORCH_BOX(&rmsnorm_cpu)); }

#ifdef MINI_KV_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(mini_kv_rmsnorm_v1, CUDA, m) { m.impl("rmsnorm", TORCH_BOX(&rmsnorm_cuda)); }
#endif
