// work(Tensor like, int kib, int passes, int spin_cycles, int host_us, int misdeed, int slot) -> Tensor
//
// The candidate of the gate study: a call whose length is chosen, with an exact slowdown (`spin_cycles`)
// and, for the negative controls, what an operator must not do: sleep on the host before its launch
// (`host_us`), wait for the device, or run on a stream of its own (`misdeed`). Its two operands of
// `kib` KiB are made once for every `slot` and kept, so that nothing large crosses a process boundary and
// another slot's lie elsewhere in memory.
#ifdef MINI_KV_WITH_CUDA
#define USE_CUDA  // without it the shim's header hides the accessor of the current CUDA stream
#endif

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include "kernel.h"

namespace {

using torch::stable::Tensor;

constexpr int64_t kFloatsPerKib = 256;

Tensor make(const Tensor& like, int64_t kib) {
  const std::array<int64_t, 1> sizes{kib * kFloatsPerKib};
  return torch::stable::new_empty(like, sizes);
}

void sleep_on_host(int64_t host_us) {
  if (host_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(host_us));
  }
}

// Kept for the life of the process on purpose: freeing them after PyTorch's own end would be an error.
using Operands = std::map<std::pair<int64_t, int64_t>, std::pair<Tensor, Tensor>>;

Operands& operands() {
  static auto* kept = new Operands();
  return *kept;
}

Tensor work_cpu(
    const Tensor& like,
    int64_t kib,
    int64_t passes,
    int64_t spin_cycles,
    int64_t host_us,
    int64_t,
    int64_t) {
  sleep_on_host(host_us);
  Tensor out = make(like, kib);
  float* data = static_cast<float*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < kib * kFloatsPerKib; ++i) {
    data[i] = static_cast<float>(i % 1003);
  }
  volatile int64_t left = passes * kib * kFloatsPerKib + spin_cycles;
  while (left > 0) {
    left = left - 1;
  }
  return out;
}

#ifdef MINI_KV_WITH_CUDA
Tensor work_cuda(
    const Tensor& like,
    int64_t kib,
    int64_t passes,
    int64_t spin_cycles,
    int64_t host_us,
    int64_t misdeed,
    int64_t slot) {
  using mini_kv_gate_study::Misdeed;
  const torch::stable::accelerator::DeviceGuard guard(like.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(like.get_device_index(), &stream));
  const int64_t count = kib * kFloatsPerKib;
  auto& kept = operands();
  const std::pair<int64_t, int64_t> wanted{kib, slot};
  auto found = kept.find(wanted);
  if (found == kept.end()) {
    Tensor a = make(like, kib);
    Tensor b = make(like, kib);
    for (Tensor* operand : {&a, &b}) {
      const char* error = mini_kv_gate_study::launch_fill(
          static_cast<float*>(operand->mutable_data_ptr()), count, stream);
      STD_TORCH_CHECK(error == nullptr, "work: CUDA error: ", error);
    }
    found = kept.emplace(wanted, std::make_pair(a, b)).first;
  }
  Tensor out = make(like, kib);
  sleep_on_host(host_us);
  const char* error = mini_kv_gate_study::launch_work(
      static_cast<const float*>(found->second.first.const_data_ptr()),
      static_cast<const float*>(found->second.second.const_data_ptr()),
      static_cast<float*>(out.mutable_data_ptr()),
      count,
      passes,
      spin_cycles,
      static_cast<Misdeed>(misdeed),
      stream);
  STD_TORCH_CHECK(error == nullptr, "work: CUDA error: ", error);
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(mini_kv_gate_study, m) {
  m.def(
      "work(Tensor like, int kib, int passes, int spin_cycles, int host_us, int misdeed, int slot) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mini_kv_gate_study, CPU, m) { m.impl("work", TORCH_BOX(&work_cpu)); }

#ifdef MINI_KV_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(mini_kv_gate_study, CUDA, m) { m.impl("work", TORCH_BOX(&work_cuda)); }
#endif
