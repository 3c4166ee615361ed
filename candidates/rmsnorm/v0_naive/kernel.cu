// One thread walks one row, twice: once for the sum of squares, once to scale. It is the formula written
// down, and slow for a reason worth seeing: at each step the 32 threads of a warp read 32 addresses that
// are whole rows apart, so that nearly every load fetches a memory sector of its own.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_rmsnorm_v0 {
namespace {

// The textbook block. With a thread a row, 1024 rows are four blocks and occupy four SMs of the GPU.
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

template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock)
    rmsnorm_row_kernel(const T* x, const T* weight, T* out, int64_t rows, int64_t hidden, Wide<T> eps) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < rows; row += step) {
    const T* from = x + row * hidden;
    T* to = out + row * hidden;

    Wide<T> squares = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      const Wide<T> v = widen(from[i]);
      squares += v * v;
    }
    const Wide<T> inverse_rms = rsqrt(squares / static_cast<Wide<T>>(hidden) + eps);

    for (int64_t i = 0; i < hidden; ++i) {
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
  const int64_t needed = (rows + kThreadsPerBlock - 1) / kThreadsPerBlock;
  const auto blocks = static_cast<unsigned>(std::min(needed, kMaxBlocks));
  rmsnorm_row_kernel<T><<<blocks, kThreadsPerBlock, 0, stream>>>(
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

}  // namespace mini_kv_rmsnorm_v0
