// One block of 256 threads normalises one row: neighbouring threads read neighbouring elements, and the
// sum of squares is folded in shared memory.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_rmsnorm_v1 {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int64_t kMaxBlocks = 2147483647;  // the hardware's limit on gridDim.x

// Everything is computed in float (double for double) and rounded once, when it is stored. A float16
// sum of squares would already overflow at 65504.
__device__ float widen(float v) { return v; }
__device__ double widen(double v) { return v; }
__device__ float widen(__half v) { return __half2float(v); }
__device__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ void store(float* at, float v) { *at = v; }
__device__ void store(double* at, double v) { *at = v; }
__device__ void store(__half* at, float v) { *at = __float2half_rn(v); }
__device__ void store(__nv_bfloat16* at, float v) { *at = __float2bfloat16_rn(v); }

template <typename T>
using Wide = decltype(widen(T{}));

// Returns the block's sum of `value` to every thread. Halving a fixed number of partial sums adds them
// in the same order each time, so results repeat bit for bit.
template <typename W>
__device__ W block_sum(W value) {
  __shared__ W partial[kThreadsPerBlock];
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreadsPerBlock / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    __syncthreads();
  }
  const W sum = partial[0];
  __syncthreads();  // the next row's first write must not overtake this read
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock) rmsnorm_block_kernel(
    const T* x, const T* weight, T* out, int64_t rows, int64_t hidden, Wide<T> eps) {
  // All threads of a block take the same rows, so all of them reach every barrier in block_sum.
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * hidden;
    T* to = out + row * hidden;

    Wide<T> squares = 0;
    for (int64_t i = threadIdx.x; i < hidden; i += kThreadsPerBlock) {
      const Wide<T> v = widen(from[i]);
      squares += v * v;
    }
    const Wide<T> mean = block_sum(squares) / static_cast<Wide<T>>(hidden);
    const Wide<T> inverse_rms = rsqrt(mean + eps);

    for (int64_t i = threadIdx.x; i < hidden; i += kThreadsPerBlock) {
      store(&to[i], widen(from[i]) * inverse_rms * widen(weight[i]));
    }
  }
}

template <typename T>
const char* launch(
    const void* x,
    const void* weight,
    void* out,
    int64_t rows,
    int64_t hidden,
    double eps,
    cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min(rows, kMaxBlocks));
  rmsnorm_block_kernel<T><<<blocks, kThreadsPerBlock, 0, stream>>>(
      static_cast<const T*>(x),
      static_cast<const T*>(weight),
      static_cast<T*>(out),
      rows,
      hidden,
      static_cast<Wide<T>>(eps));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_rmsnorm(
    Element element,
    const void* x,
    const void* weight,
    void* out,
    int64_t rows,
    int64_t hidden,
    double eps,
    void* stream) {
  if (rows == 0 || hidden == 0) {
    return nullptr;  // a grid of no blocks is a launch error
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (element) {
    case Element::kFloat16:
      return launch<__half>(x, weight, out, rows, hidden, eps, cuda_stream);
    case Element::kBFloat16:
      return launch<__nv_bfloat16>(x, weight, out, rows, hidden, eps, cuda_stream);
    case Element::kFloat32:
      return launch<float>(x, weight, out, rows, hidden, eps, cuda_stream);
    case Element::kFloat64:
      return launch<double>(x, weight, out, rows, hidden, eps, cuda_stream);
  }
  return "unknown element type";
}

}  // namespace mini_kv_rmsnorm_v1
