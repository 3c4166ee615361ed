// bias_relu(Tensor x, Tensor bias) -> Tensor, written the classic way: TORCH_LIBRARY, ATen headers, and
// the derivative as a torch::autograd::Function in C++.
//
// The price is a library tied to one PyTorch version, and a compilation that takes several times as
// long, even though only the narrow headers are included (torch/extension.h would take longer still).
// What it buys: symbolic sizes and autograd without a line of Python.
#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#ifdef MINI_KV_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include "kernel.h"

namespace {

// Fewer elements than this are not worth waking a second thread for.
constexpr int64_t kGrainElements = 32768;

bool is_supported(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble;
}

// Sizes are compared as symbols, so the same checks serve the kernels and the tracer.
void check(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(x.device() == bias.device(), "bias_relu: x and bias must be on the same device");
  TORCH_CHECK(x.scalar_type() == bias.scalar_type(), "bias_relu: x and bias must have the same dtype");
  TORCH_CHECK(is_supported(x.scalar_type()), "bias_relu: unsupported dtype, a floating one is needed");
  TORCH_CHECK(x.dim() >= 1, "bias_relu: x must have at least 1 dimension");
  TORCH_CHECK(bias.dim() == 1, "bias_relu: bias must be 1-dimensional");
  TORCH_SYM_CHECK(
      bias.sym_size(0).sym_eq(x.sym_size(-1)),
      "bias_relu: bias must have the length of x's last dimension");
}

// Asked for by name: by default empty_like repeats the strides of a transposed input.
at::Tensor empty_result(const at::Tensor& x) {
  return at::empty_like(x, x.options().memory_format(at::MemoryFormat::Contiguous));
}

template <typename T, typename Wide>
void bias_relu_rows(const at::Tensor& x, const at::Tensor& bias, at::Tensor& out) {
  const int64_t hidden = bias.size(0);
  if (hidden == 0) {
    return;  // no elements, and no division by zero below
  }
  const T* x_data = x.const_data_ptr<T>();
  const T* bias_data = bias.const_data_ptr<T>();
  T* out_data = out.mutable_data_ptr<T>();
  const int64_t grain_rows = std::max<int64_t>(1, kGrainElements / hidden);
  at::parallel_for(0, x.numel() / hidden, grain_rows, [&](int64_t begin, int64_t end) {
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

at::Tensor bias_relu_cpu(const at::Tensor& x, const at::Tensor& bias) {
  check(x, bias);
  const at::Tensor x_dense = x.contiguous();
  const at::Tensor bias_dense = bias.contiguous();
  at::Tensor out = empty_result(x);
  switch (x.scalar_type()) {
    case at::kHalf:
      bias_relu_rows<at::Half, float>(x_dense, bias_dense, out);
      break;
    case at::kBFloat16:
      bias_relu_rows<at::BFloat16, float>(x_dense, bias_dense, out);
      break;
    case at::kDouble:
      bias_relu_rows<double, double>(x_dense, bias_dense, out);
      break;
    default:
      bias_relu_rows<float, float>(x_dense, bias_dense, out);
  }
  return out;
}

at::Tensor bias_relu_meta(const at::Tensor& x, const at::Tensor& bias) {
  check(x, bias);
  return empty_result(x);
}

#ifdef MINI_KV_WITH_CUDA
mini_kv_fused_bias_relu_classic::Element element_of(at::ScalarType type) {
  using mini_kv_fused_bias_relu_classic::Element;
  switch (type) {
    case at::kHalf:
      return Element::kFloat16;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kDouble:
      return Element::kFloat64;
    default:
      return Element::kFloat32;
  }
}

at::Tensor bias_relu_cuda(const at::Tensor& x, const at::Tensor& bias) {
  check(x, bias);
  // The inputs may live on another GPU than the current one; allocation and launch must follow them.
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor x_dense = x.contiguous();
  const at::Tensor bias_dense = bias.contiguous();
  at::Tensor out = empty_result(x);
  const char* error = mini_kv_fused_bias_relu_classic::launch_bias_relu(
      element_of(x.scalar_type()),
      x_dense.const_data_ptr(),
      bias_dense.const_data_ptr(),
      out.mutable_data_ptr(),
      x_dense.numel(),
      bias_dense.numel(),
      at::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == nullptr, "bias_relu: CUDA error: ", error);
  return out;
}
#endif

at::Tensor call_bias_relu(const at::Tensor& x, const at::Tensor& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mini_kv_fused_bias_relu_classic::bias_relu", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(x, bias);
}

// d relu(v) is dv where v > 0; the bias gathers it over all leading dimensions. The result alone is
// kept: where it is positive, and nowhere else, the gradient passes.
class BiasRelu : public torch::autograd::Function<BiasRelu> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor out = call_bias_relu(x, bias);
    context->save_for_backward({out});
    return out;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list grads) {
    const at::Tensor out = context->get_saved_variables()[0];
    const at::Tensor grad_x = at::threshold_backward(grads[0], out, 0);
    at::Tensor grad_bias = grad_x.sum_to_size_symint({out.sym_size(-1)});
    return {grad_x, grad_bias};
  }
};

at::Tensor bias_relu_autograd(const at::Tensor& x, const at::Tensor& bias) {
  return BiasRelu::apply(x, bias);
}

}  // namespace

TORCH_LIBRARY(mini_kv_fused_bias_relu_classic, m) {
  m.def("bias_relu(Tensor x, Tensor bias) -> Tensor");
}

TORCH_LIBRARY_IMPL(mini_kv_fused_bias_relu_classic, CPU, m) { m.impl("bias_relu", bias_relu_cpu); }

TORCH_LIBRARY_IMPL(mini_kv_fused_bias_relu_classic, Meta, m) { m.impl("bias_relu", bias_relu_meta); }

TORCH_LIBRARY_IMPL(mini_kv_fused_bias_relu_classic, Autograd, m) {
  m.impl("bias_relu", bias_relu_autograd);
}

#ifdef MINI_KV_WITH_CUDA
TORCH_LIBRARY_IMPL(mini_kv_fused_bias_relu_classic, CUDA, m) { m.impl("bias_relu", bias_relu_cuda); }
#endif
