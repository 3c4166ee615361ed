// Puts one block a row into a grid dimension that ends at 65535.
#include <cmath>
#include <cstdint>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include "kernel.h"

namespace {

using torch::stable::Tensor;

Tensor rmsnorm(const Tensor& x, const Tensor& weight, double eps) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "rmsnorm: float32 is needed");
  STD_TORCH_CHECK(
      weight.dim() == 1 && weight.size(0) == x.size(x.dim() - 1), "rmsnorm: weight has another length");
  STD_TORCH_CHECK(std::isfinite(eps) && eps > 0, "rmsnorm: eps must be positive");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor dense = torch::stable::contiguous(x);
  const Tensor factors = torch::stable::contiguous(weight);
  Tensor out = torch::stable::new_empty(dense, dense.sizes());
  if (out.numel() == 0) return out;
  const int64_t hidden = factors.numel();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  const char* error = zoo::launch(
      static_cast<const float*>(dense.const_data_ptr()),
      static_cast<const float*>(factors.const_data_ptr()),
      static_cast<float*>(out.mutable_data_ptr()),
      dense.numel() / hidden,
      hidden,
      static_cast<float>(eps),
      stream);
  STD_TORCH_CHECK(error == nullptr, "rmsnorm: CUDA error: ", error);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(zoo, m) { m.def("rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(zoo, CUDA, m) { m.impl("rmsnorm", TORCH_BOX(&rmsnorm)); }
