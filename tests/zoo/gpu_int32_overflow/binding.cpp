// Counts elements in 32 bits, which end at 2^31.
#include <array>
#include <cstdint>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "kernel.h"

namespace {

using torch::stable::Tensor;

Tensor matmul(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(
      a.dim() == 2 && b.dim() == 2 && b.size(1) == 4 && a.size(1) == b.size(0), "matmul: [m, k] x [k, 4] is needed");
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const Tensor left = torch::stable::contiguous(a);
  const Tensor right = torch::stable::contiguous(b);
  const std::array<int64_t, 2> shape{a.size(0), 4};
  Tensor out = torch::stable::new_empty(left, shape);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(a.get_device_index(), &stream));
  const char* error = zoo::launch(
      static_cast<const float*>(left.const_data_ptr()),
      static_cast<const float*>(right.const_data_ptr()),
      static_cast<float*>(out.mutable_data_ptr()),
      a.size(0),
      a.size(1),
      stream);
  STD_TORCH_CHECK(error == nullptr, "matmul: CUDA error: ", error);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(zoo, m) { m.def("matmul(Tensor a, Tensor b) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(zoo, CUDA, m) { m.impl("matmul", TORCH_BOX(&matmul)); }
