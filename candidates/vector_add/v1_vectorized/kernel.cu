// Sixteen bytes at a time: one thread loads packs of both operands, each with one instruction, adds the
// lanes, and stores packs. A quarter to an eighth of the instructions, and more bytes under way at once,
// which is what memory bandwidth is made of.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_vector_add_v1 {
namespace {

constexpr int kThreadsPerBlock = 256;       // where elements are taken one by one
constexpr int64_t kMaxBlocks = 2147483647;  // the hardware's limit on gridDim.x
constexpr int kPackBytes = 16;              // the widest load there is

// Up to this size an operand, all three fit into an L2 cache and latency decides: four packs a thread are
// asked for before the first is used. Beyond it requests are many whatever a thread does, and the plainest
// order of them is the fastest one (scripts/tune tries the others): one pack a thread, in large blocks.
constexpr int64_t kSmallBytes = int64_t{16} << 20;
constexpr int kThreadsWhenSmall = 512;
constexpr int kPacksWhenSmall = 4;
constexpr int kThreadsWhenLarge = 1024;

__device__ __forceinline__ float sum(float a, float b) { return a + b; }
__device__ __forceinline__ double sum(double a, double b) { return a + b; }
__device__ __forceinline__ __half sum(__half a, __half b) { return __hadd(a, b); }
__device__ __forceinline__ __nv_bfloat16 sum(__nv_bfloat16 a, __nv_bfloat16 b) { return __hadd(a, b); }
__device__ __forceinline__ __half2 sum(__half2 a, __half2 b) { return __hadd2(a, b); }
__device__ __forceinline__ __nv_bfloat162 sum(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hadd2(a, b);
}

// What one addition takes of a pack: half-width elements go two at a time. The sum is rounded once, and
// correctly: a sum in float, which holds both operands with bits to spare, rounds to the same.
template <typename T>
struct Lane {
  using Type = T;
};
template <>
struct Lane<__half> {
  using Type = __half2;
};
template <>
struct Lane<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};

template <typename T>
__device__ __forceinline__ uint4 sum_packs(uint4 a, uint4 b) {
  using L = typename Lane<T>::Type;
  constexpr int kLanes = kPackBytes / sizeof(L);
  L from_a[kLanes];
  L from_b[kLanes];
  memcpy(from_a, &a, kPackBytes);
  memcpy(from_b, &b, kPackBytes);
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    from_a[lane] = sum(from_a[lane], from_b[lane]);
  }
  memcpy(&a, from_a, kPackBytes);
  return a;
}

// With kOnce the load leaves no copy in the L1 cache, where nobody will look for it. Small calls are shorter
// for it, large ones longer.
//
// It is no load of constant memory (ld.global.nc): those may move across stores, and the assembler did move
// the last of eight behind the first stores, so that each thread waited for memory twice.
template <bool kOnce>
__device__ __forceinline__ uint4 load(const uint4* at) {
  if constexpr (kOnce) {
    uint4 pack;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pack.x), "=r"(pack.y), "=r"(pack.z), "=r"(pack.w)
                 : "l"(at));
    return pack;
  } else {
    return *at;
  }
}

// The first threads also add the few elements behind the last whole pack. One block for each
// kThreads * kPacks packs: the limit on blocks lies beyond 8 TiB.
template <typename T, int kThreads, int kPacks>
__global__ void __launch_bounds__(kThreads) add_packs_kernel(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int64_t count) {
  constexpr int64_t kLanes = kPackBytes / sizeof(T);
  constexpr bool kOnce = kPacks > 1;
  const int64_t packs = count / kLanes;
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kPacks) + threadIdx.x;
  const auto* a_packs = reinterpret_cast<const uint4*>(a) + first;
  const auto* b_packs = reinterpret_cast<const uint4*>(b) + first;
  auto* out_packs = reinterpret_cast<uint4*>(out) + first;
  uint4 from_a[kPacks];
  uint4 from_b[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kThreads < packs) {
      from_a[k] = load<kOnce>(a_packs + k * kThreads);
      from_b[k] = load<kOnce>(b_packs + k * kThreads);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kThreads < packs) {
      out_packs[k * kThreads] = sum_packs<T>(from_a[k], from_b[k]);
    }
  }
  const int64_t rest = packs * kLanes + first;
  if (rest < count) {
    out[rest] = sum(a[rest], b[rest]);
  }
}

// For operands that do not start on a 16-byte boundary, where a wide load would be an illegal access.
template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock) add_elements_kernel(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    out[i] = sum(a[i], b[i]);
  }
}

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes == 0;
}

// At least one block, which also sees to the elements behind the last pack.
unsigned blocks_for(int64_t count, int64_t a_block) {
  return static_cast<unsigned>(std::clamp<int64_t>((count + a_block - 1) / a_block, 1, kMaxBlocks));
}

template <typename T, int kThreads, int kPacks>
void launch_packs(const T* a, const T* b, T* out, int64_t count, cudaStream_t stream) {
  const int64_t packs = count * static_cast<int64_t>(sizeof(T)) / kPackBytes;
  add_packs_kernel<T, kThreads, kPacks>
      <<<blocks_for(packs, kThreads * kPacks), kThreads, 0, stream>>>(a, b, out, count);
}

template <typename T>
const char* launch(const void* a, const void* b, void* out, int64_t count, cudaStream_t stream) {
  const T* a_data = static_cast<const T*>(a);
  const T* b_data = static_cast<const T*>(b);
  T* out_data = static_cast<T*>(out);
  if (!is_aligned(a) || !is_aligned(b) || !is_aligned(out)) {
    add_elements_kernel<T><<<blocks_for(count, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
        a_data, b_data, out_data, count);
  } else if (count * static_cast<int64_t>(sizeof(T)) <= kSmallBytes) {
    launch_packs<T, kThreadsWhenSmall, kPacksWhenSmall>(a_data, b_data, out_data, count, stream);
  } else {
    launch_packs<T, kThreadsWhenLarge, 1>(a_data, b_data, out_data, count, stream);
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
