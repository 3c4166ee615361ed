// spin(Tensor like, int amount, int blocks, int steps) -> Tensor
//
// With steps == 0 a call that lasts `amount` cycles (nanoseconds on the CPU). It returns the log of the
// last calls, one row each: {start ns, end ns, start clock, end clock, number of the call}; the log is one
// tensor for the life of the process, so that the stamps of many timed calls are had by fetching one.
// On a GPU `blocks` > 0 makes that many blocks, each of which lasts `amount` cycles, with a log of their own:
// a row holds the number of the call, then every block's start and every block's end, ns. With `amount` < 0
// the threads copy 2-byte elements instead, one each; with `amount` == 0 that log is returned as it stands. A
// CPU has no blocks.
// Else the next `steps` distinct readings of the global timer.
#ifdef MINI_KV_WITH_CUDA
#define USE_CUDA  // without it the shim's header hides the accessor of the current CUDA stream
#endif

#include <array>
#include <chrono>
#include <cstdint>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "kernel.h"

namespace {

using torch::stable::Tensor;

using mini_kv_calibration::kCalls;
using mini_kv_calibration::kStamps;

Tensor make_stamps(const Tensor& like, int64_t count) {
  const std::array<int64_t, 1> sizes{count};
  return torch::stable::new_empty(like, sizes);
}

// Kept for the life of the process on purpose: freeing it after PyTorch's own end would be an error.
Tensor& log_of(const Tensor& like) {
  static auto* log = new Tensor(make_stamps(like, kCalls * kStamps));
  return *log;
}

int64_t next_number() {
  static int64_t number = 0;
  return ++number;
}

int64_t* row(Tensor& log, int64_t number) {
  return static_cast<int64_t*>(log.mutable_data_ptr()) + (number % kCalls) * kStamps;
}

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

Tensor steps_cpu(const Tensor& like, int64_t steps) {
  Tensor stamps = make_stamps(like, steps);
  int64_t* data = static_cast<int64_t*>(stamps.mutable_data_ptr());
  int64_t last = now_ns();
  for (int64_t i = 0; i < steps; ++i) {
    int64_t now = last;
    while (now == last) {
      now = now_ns();
    }
    data[i] = last = now;
  }
  return stamps;
}

Tensor spin_cpu(const Tensor& like, int64_t amount, int64_t /*blocks*/, int64_t steps) {
  if (steps > 0) {
    return steps_cpu(like, steps);
  }
  const int64_t number = next_number();
  Tensor& log = log_of(like);
  int64_t* stamps = row(log, number);
  const int64_t first = now_ns();
  int64_t last = first;
  while (last - first < amount) {
    last = now_ns();
  }
  stamps[0] = stamps[2] = first;
  stamps[1] = stamps[3] = last;
  stamps[4] = number;
  return log;
}

#ifdef MINI_KV_WITH_CUDA
// What kMaxBlocks blocks copy, in units of 8 bytes.
constexpr int64_t kCopied = mini_kv_calibration::kMaxBlocks * mini_kv_calibration::kWideThreads / 4;

Tensor spin_wide(const Tensor& like, int64_t amount, int64_t blocks, void* stream) {
  using namespace mini_kv_calibration;
  STD_TORCH_CHECK(blocks <= kMaxBlocks, "spin: at most ", kMaxBlocks, " blocks");
  static auto* log = new Tensor(make_stamps(like, kWideCalls * kWideStamps));
  static auto* elements = new Tensor(make_stamps(like, 2 * kCopied));
  if (amount == 0) {
    return *log;
  }
  const int64_t number = next_number();
  int64_t* stamps = static_cast<int64_t*>(log->mutable_data_ptr()) + (number % kWideCalls) * kWideStamps;
  auto* from = static_cast<int64_t*>(elements->mutable_data_ptr());
  const char* error =
      amount > 0 ? launch_wide(stamps, amount, blocks, number, stream)
                 : launch_copy(stamps, reinterpret_cast<const int16_t*>(from),
                               reinterpret_cast<int16_t*>(from + kCopied), blocks, number, stream);
  STD_TORCH_CHECK(error == nullptr, "spin: CUDA error: ", error);
  return *log;
}

Tensor spin_cuda(const Tensor& like, int64_t amount, int64_t blocks, int64_t steps) {
  const torch::stable::accelerator::DeviceGuard guard(like.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(like.get_device_index(), &stream));
  if (steps > 0) {
    Tensor stamps = make_stamps(like, steps);
    const char* error = mini_kv_calibration::launch_steps(
        static_cast<int64_t*>(stamps.mutable_data_ptr()), steps, stream);
    STD_TORCH_CHECK(error == nullptr, "spin: CUDA error: ", error);
    return stamps;
  }
  if (blocks > 0) {
    return spin_wide(like, amount, blocks, stream);
  }
  const int64_t number = next_number();
  Tensor& log = log_of(like);
  const char* error = mini_kv_calibration::launch_spin(row(log, number), amount, number, stream);
  STD_TORCH_CHECK(error == nullptr, "spin: CUDA error: ", error);
  return log;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(mini_kv_calibration, m) {
  m.def("spin(Tensor like, int amount, int blocks, int steps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mini_kv_calibration, CPU, m) { m.impl("spin", TORCH_BOX(&spin_cpu)); }

#ifdef MINI_KV_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(mini_kv_calibration, CUDA, m) { m.impl("spin", TORCH_BOX(&spin_cuda)); }
#endif
