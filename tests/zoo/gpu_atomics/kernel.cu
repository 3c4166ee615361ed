// Sums with floating-point atomics, in whatever order the blocks come.
#include "kernel.h"

#include <algorithm>

#include <cuda_runtime.h>

namespace zoo {
namespace {

constexpr int kThreads = 256;

__global__ void square_kernel(const float* x, float* squares, int64_t hidden) {
  for (int64_t i = threadIdx.x + int64_t{blockIdx.y} * kThreads; i < hidden; i += int64_t{gridDim.y} * kThreads) {
    const float own = x[blockIdx.x * hidden + i];
    atomicAdd(&squares[blockIdx.x], own * own);
  }
}

__global__ void rmsnorm_kernel(
    const float* x, const float* weight, const float* squares, float* out, int64_t hidden, float eps) {
  const float scale = rsqrtf(squares[blockIdx.x] / static_cast<float>(hidden) + eps);
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    const int64_t at = blockIdx.x * hidden + i;
    out[at] = x[at] * scale * weight[i];
  }
}

}  // namespace

const char* launch(
    const float* x, const float* weight, float* out, float* squares, int64_t rows, int64_t hidden, float eps, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  cudaMemsetAsync(squares, 0, static_cast<size_t>(rows) * sizeof(float), on);
  square_kernel<<<dim3(static_cast<unsigned>(rows), 16), kThreads, 0, on>>>(x, squares, hidden);
  rmsnorm_kernel<<<static_cast<unsigned>(rows), kThreads, 0, on>>>(x, weight, squares, out, hidden, eps);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace zoo
