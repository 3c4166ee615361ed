// Sixteen bytes at a time: one thread loads a pack of each operand with one instruction, adds the lanes,
// and stores a pack. A quarter to an eighth of the instructions, and more bytes under way at once, which
// is what memory bandwidth is made of.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_vector_add_v1 {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int64_t kMaxBlocks = 2147483647;  // the hardware's limit on gridDim.x
constexpr int kPackBytes = 16;              // the widest load there is

template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr int kLanes = kPackBytes / sizeof(T);
  T lane[kLanes];
};

// Half-width elements are added in float: it holds both operands and their sum with bits to spare, so
// the one rounding back gives the correctly rounded sum.
__device__ float sum(float a, float b) { return a + b; }
__device__ double sum(double a, double b) { return a + b; }
__device__ __half sum(__half a, __half b) { return __float2half_rn(__half2float(a) + __half2float(b)); }
__device__ __nv_bfloat16 sum(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

// The first threads also add the few elements behind the last whole pack.
template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock)
    add_packs_kernel(const T* a, const T* b, T* out, int64_t count) {
  const int64_t packs = count / Pack<T>::kLanes;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const auto* a_packs = reinterpret_cast<const Pack<T>*>(a);
  const auto* b_packs = reinterpret_cast<const Pack<T>*>(b);
  auto* out_packs = reinterpret_cast<Pack<T>*>(out);
  for (int64_t p = first; p < packs; p += step) {
    const Pack<T> from_a = a_packs[p];
    const Pack<T> from_b = b_packs[p];
    Pack<T> result;
#pragma unroll
    for (int lane = 0; lane < Pack<T>::kLanes; ++lane) {
      result.lane[lane] = sum(from_a.lane[lane], from_b.lane[lane]);
    }
    out_packs[p] = result;
  }
  const int64_t rest = packs * Pack<T>::kLanes + first;
  if (rest < count) {
    out[rest] = sum(a[rest], b[rest]);
  }
}

// For operands that do not start on a 16-byte boundary, where a wide load would be an illegal access.
template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock)
    add_elements_kernel(const T* a, const T* b, T* out, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    out[i] = sum(a[i], b[i]);
  }
}

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes == 0;
}

unsigned blocks_for(int64_t threads) {
  const int64_t blocks = (threads + kThreadsPerBlock - 1) / kThreadsPerBlock;
  return static_cast<unsigned>(std::min(blocks, kMaxBlocks));
}

template <typename T>
const char* launch(const void* a, const void* b, void* out, int64_t count, cudaStream_t stream) {
  const T* a_data = static_cast<const T*>(a);
  const T* b_data = static_cast<const T*>(b);
  T* out_data = static_cast<T*>(out);
  if (is_aligned(a) && is_aligned(b) && is_aligned(out)) {
    constexpr int kLanes = Pack<T>::kLanes;
    const unsigned blocks = blocks_for((count + kLanes - 1) / kLanes);
    add_packs_kernel<T><<<blocks, kThreadsPerBlock, 0, stream>>>(a_data, b_data, out_data, count);
  } else {
    add_elements_kernel<T>
        <<<blocks_for(count), kThreadsPerBlock, 0, stream>>>(a_data, b_data, out_data, count);
  }
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

}  // namespace mini_kv_vector_add_v1
