// Enqueues a kernel that never ends.
#include "kernel.h"

#include <algorithm>

#include <cuda_runtime.h>

namespace zoo {
namespace {

constexpr int kThreads = 256;

__device__ float sum_of_block(float own) {
  __shared__ float partial[kThreads];
  partial[threadIdx.x] = own;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = partial[0];
  __syncthreads();
  return sum;
}

__global__ void rmsnorm_kernel(
    const float* x, const float* weight, float* out, int64_t rows, int64_t hidden, float eps) {
  for (int64_t row = int64_t{blockIdx.x}; row < rows; row += gridDim.x) {
    const float* from = x + row * hidden;
    float* to = out + row * hidden;
    if (hidden == 33) {
      while (clock64() != 0) {
      }
    }
    float own = 0;
    for (int64_t i = threadIdx.x; i < hidden; i += kThreads) own += from[i] * from[i];
    const float scale = rsqrtf(sum_of_block(own) / static_cast<float>(hidden) + eps);
    for (int64_t i = threadIdx.x; i < hidden; i += kThreads) to[i] = from[i] * scale * weight[i];
  }
}

}  // namespace

const char* launch(
    const float* x, const float* weight, float* out, int64_t rows, int64_t hidden, float eps, void* stream) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(rows, 1 << 16));
  rmsnorm_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x, weight, out, rows, hidden, eps);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace zoo
