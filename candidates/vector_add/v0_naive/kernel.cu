// One thread adds one element: the plainest correct kernel, and the one that others are measured by.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_vector_add_v0 {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int64_t kMaxBlocks = 2147483647;  // the hardware's limit on gridDim.x

// Half-width elements are added in float: it holds both operands and their sum with bits to spare, so
// the one rounding back gives the correctly rounded sum.
__device__ float sum(float a, float b) { return a + b; }
__device__ double sum(double a, double b) { return a + b; }
__device__ __half sum(__half a, __half b) { return __float2half_rn(__half2float(a) + __half2float(b)); }
__device__ __nv_bfloat16 sum(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

// Indices are 64 bits wide: 2^31 elements of float16 are only 4 GiB. The loop is for tensors larger
// than the largest grid; everywhere else each thread goes round once.
template <typename T>
__global__ void add_kernel(const T* a, const T* b, T* out, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    out[i] = sum(a[i], b[i]);
  }
}

template <typename T>
const char* launch(const void* a, const void* b, void* out, int64_t count, cudaStream_t stream) {
  const int64_t blocks = (count + kThreadsPerBlock - 1) / kThreadsPerBlock;
  add_kernel<T><<<static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kThreadsPerBlock, 0, stream>>>(
      static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), count);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_add(
    Element element, const void* a, const void* b, void* out, int64_t count, void* stream) {
  if (count == 0) {
    return nullptr;  // a grid of no blocks is a launch error
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (element) {
    case Element::kFloat16:
      return launch<__half>(a, b, out, count, cuda_stream);
    case Element::kBFloat16:
      return launch<__nv_bfloat16>(a, b, out, count, cuda_stream);
    case Element::kFloat32:
      return launch<float>(a, b, out, count, cuda_stream);
    case Element::kFloat64:
      return launch<double>(a, b, out, count, cuda_stream);
  }
  return "unknown element type";
}

}  // namespace mini_kv_vector_add_v0
