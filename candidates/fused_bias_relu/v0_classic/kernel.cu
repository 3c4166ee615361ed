// One thread computes one element. The fusion alone is the gain: PyTorch runs an addition and a relu,
// and writes and reads the whole intermediate in between.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_fused_bias_relu_classic {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int64_t kMaxBlocks = 2147483647;  // the hardware's limit on gridDim.x

// Half-width elements are computed in float and rounded once.
__device__ float widen(float v) { return v; }
__device__ double widen(double v) { return v; }
__device__ float widen(__half v) { return __half2float(v); }
__device__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ void store(float* at, float v) { *at = v; }
__device__ void store(double* at, double v) { *at = v; }
__device__ void store(__half* at, float v) { *at = __float2half_rn(v); }
__device__ void store(__nv_bfloat16* at, float v) { *at = __float2bfloat16_rn(v); }

// Written as "negative becomes zero" and not as fmaxf(v, 0): fmaxf would turn NaN into zero, and a NaN
// that disappears inside a network is never found again.
template <typename T>
__device__ T relu(T v) {
  return v < T{0} ? T{0} : v;
}

template <typename T>
__global__ void bias_relu_kernel(const T* x, const T* bias, T* out, int64_t count, int64_t hidden) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    store(&out[i], relu(widen(x[i]) + widen(bias[i % hidden])));
  }
}

template <typename T>
const char* launch(
    const void* x, const void* bias, void* out, int64_t count, int64_t hidden, cudaStream_t stream) {
  const int64_t blocks = (count + kThreadsPerBlock - 1) / kThreadsPerBlock;
  bias_relu_kernel<T>
      <<<static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kThreadsPerBlock, 0, stream>>>(
          static_cast<const T*>(x), static_cast<const T*>(bias), static_cast<T*>(out), count, hidden);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_bias_relu(
    Element element,
    const void* x,
    const void* bias,
    void* out,
    int64_t count,
    int64_t hidden,
    void* stream) {
  if (count == 0) {
    return nullptr;  // a grid of no blocks is a launch error
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (element) {
    case Element::kFloat16:
      return launch<__half>(x, bias, out, count, hidden, cuda_stream);
    case Element::kBFloat16:
      return launch<__nv_bfloat16>(x, bias, out, count, hidden, cuda_stream);
    case Element::kFloat32:
      return launch<float>(x, bias, out, count, hidden, cuda_stream);
    case Element::kFloat64:
      return launch<double>(x, bias, out, count, hidden, cuda_stream);
  }
  return "unknown element type";
}

}  // namespace mini_kv_fused_bias_relu_classic
