// add(Tensor a, Tensor b) -> Tensor, written against PyTorch's stable ABI.
//
// Three implementations share one set of checks: CPU, CUDA, and Meta, which PyTorch asks for the shape
// of the result when it traces with FakeTensors. The result is always a new contiguous tensor.
#ifdef MINI_KV_WITH_CUDA
#define USE_CUDA  // without it the shim's header hides the accessor of the current CUDA stream
#endif

#include <array>
#include <cstdint>
#include <optional>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/core/ScalarType.h>

#include "kernel.h"

namespace {

using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Fewer elements than this are not worth waking a second thread for.
constexpr int64_t kGrainElements = 32768;

constexpr const char* kShapeMessage = "add: a and b must have the same shape, there is no broadcasting";

bool is_supported(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Half || type == ScalarType::BFloat16 ||
      type == ScalarType::Double;
}

// Everything but the shape, which Meta must compare in another way.
void check_type_and_device(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(a.device() == b.device(), "add: a and b must be on the same device");
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), "add: a and b must have the same dtype");
  STD_TORCH_CHECK(is_supported(a.scalar_type()), "add: unsupported dtype, a floating one is needed");
}

bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) {
    return false;
  }
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != b.size(d)) {
      return false;
    }
  }
  return true;
}

void check(const Tensor& a, const Tensor& b) {
  check_type_and_device(a, b);
  STD_TORCH_CHECK(same_shape(a, b), kShapeMessage);
}

template <typename T>
void add_loop(const Tensor& a, const Tensor& b, Tensor& out) {
  const T* a_data = static_cast<const T*>(a.const_data_ptr());
  const T* b_data = static_cast<const T*>(b.const_data_ptr());
  T* out_data = static_cast<T*>(out.mutable_data_ptr());
  torch::stable::parallel_for(0, a.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out_data[i] = a_data[i] + b_data[i];
    }
  });
}

Tensor add_cpu(const Tensor& a, const Tensor& b) {
  check(a, b);
  const Tensor a_dense = torch::stable::contiguous(a);
  const Tensor b_dense = torch::stable::contiguous(b);
  Tensor out = torch::stable::new_empty(a_dense, a_dense.sizes());
  switch (a.scalar_type()) {
    case ScalarType::Half:
      add_loop<torch::headeronly::Half>(a_dense, b_dense, out);
      break;
    case ScalarType::BFloat16:
      add_loop<torch::headeronly::BFloat16>(a_dense, b_dense, out);
      break;
    case ScalarType::Double:
      add_loop<double>(a_dense, b_dense, out);
      break;
    default:
      add_loop<float>(a_dense, b_dense, out);
  }
  return out;
}

// Sizes may be symbols here. Reading one as a number would pin the trace to it: a compiler that asked
// for dynamic shapes would then trace again for every size. So sizes are never read: two ATen operators
// that understand symbols compare the shapes and make the result.
Tensor add_meta(const Tensor& a, const Tensor& b) {
  check_type_and_device(a, b);
  using torch::stable::detail::from;
  using torch::stable::detail::to;

  std::array<StableIValue, 2> compare{from(a), from(b)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::is_same_size", "", compare.data(), TORCH_ABI_VERSION));
  STD_TORCH_CHECK(to<bool>(compare[0]), kShapeMessage);

  // The format is asked for by name: by default empty_like repeats the strides of a transposed input.
  std::array<StableIValue, 6> make{
      from(a),
      from(std::nullopt),
      from(std::nullopt),
      from(std::nullopt),
      from(std::nullopt),
      from(std::optional<MemoryFormat>(MemoryFormat::Contiguous))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::empty_like", "", make.data(), TORCH_ABI_VERSION));
  return to<Tensor>(make[0]);
}

#ifdef MINI_KV_WITH_CUDA
mini_kv_vector_add_v0::Element element_of(ScalarType type) {
  using mini_kv_vector_add_v0::Element;
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

Tensor add_cuda(const Tensor& a, const Tensor& b) {
  check(a, b);
  // The inputs may live on another GPU than the current one; allocation and launch must follow them.
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const Tensor a_dense = torch::stable::contiguous(a);
  const Tensor b_dense = torch::stable::contiguous(b);
  Tensor out = torch::stable::new_empty(a_dense, a_dense.sizes());

  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(a.get_device_index(), &stream));
  const char* error = mini_kv_vector_add_v0::launch_add(
      element_of(a.scalar_type()),
      a_dense.const_data_ptr(),
      b_dense.const_data_ptr(),
      out.mutable_data_ptr(),
      a_dense.numel(),
      stream);
  STD_TORCH_CHECK(error == nullptr, "add: CUDA error: ", error);
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(mini_kv_vector_add_v0, m) { m.def("add(Tensor a, Tensor b) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(mini_kv_vector_add_v0, CPU, m) { m.impl("add", TORCH_BOX(&add_cpu)); }

STABLE_TORCH_LIBRARY_IMPL(mini_kv_vector_add_v0, Meta, m) { m.impl("add", TORCH_BOX(&add_meta)); }

#ifdef MINI_KV_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(mini_kv_vector_add_v0, CUDA, m) { m.impl("add", TORCH_BOX(&add_cuda)); }
#endif
