// A kernel whose length is set from outside: memory passes for its bulk, a spin for an exact addition.
//
// The grid is one wave, so that what every block adds at its end is added to the kernel once.
#include "kernel.h"

#include <cuda_runtime.h>

namespace mini_kv_gate_study {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int kBlocksPerMultiprocessor = 8;  // 2048 threads: all that one holds

__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerMultiprocessor) work_kernel(
    const float4* a, const float4* b, float4* out, int64_t packs, int64_t passes, int64_t spin_cycles) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += step) {
      const float4 left = a[i];
      const float4 right = b[i];
      out[i] = make_float4(left.x + right.x, left.y + right.y, left.z + right.z, left.w + right.w);
    }
    asm volatile("" ::: "memory");  // every pass reads and writes again
  }
  // The spin follows the whole block's work: begun with one warp's, it would hide behind the other warps'.
  // One thread a block: 64 warps of a multiprocessor that all ask for the clock wait for each other, and a
  // spin of 0.1 us then takes anything up to 0.5 us. A spin of no cycles asks for the clock as well, so that
  // a slowdown is the spin alone.
  __syncthreads();
  if (threadIdx.x == 0) {
    const long long begin = clock64();
    while (clock64() - begin < spin_cycles) {
    }
  }
}

__global__ void fill_kernel(float* out, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    out[i] = static_cast<float>((i * 2654435761LL) % 1000003LL);
  }
}

const char* text(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_work(
    const float* a,
    const float* b,
    float* out,
    int64_t count,
    int64_t passes,
    int64_t spin_cycles,
    Misdeed misdeed,
    void* stream) {
  int device = 0;
  int multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (misdeed == Misdeed::kSideStream) {
    static cudaStream_t side = nullptr;
    if (side == nullptr) {
      cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    }
    cuda_stream = side;
  }
  work_kernel<<<multiprocessors * kBlocksPerMultiprocessor, kThreadsPerBlock, 0, cuda_stream>>>(
      reinterpret_cast<const float4*>(a),
      reinterpret_cast<const float4*>(b),
      reinterpret_cast<float4*>(out),
      count / 4,
      passes,
      spin_cycles);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && misdeed == Misdeed::kSynchronize) {
    return text(cudaStreamSynchronize(cuda_stream));
  }
  return text(error);
}

const char* launch_fill(float* out, int64_t count, void* stream) {
  fill_kernel<<<1024, kThreadsPerBlock, 0, static_cast<cudaStream_t>(stream)>>>(out, count);
  return text(cudaGetLastError());
}

}  // namespace mini_kv_gate_study
