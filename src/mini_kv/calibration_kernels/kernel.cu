// Spins by the multiprocessor's clock, whose step is a cycle; the global timer's step is 32 ns or coarser,
// and tells only how long a cycle is.
#include "kernel.h"

#include <cuda_runtime.h>

namespace mini_kv_calibration {
namespace {

__device__ int64_t global_timer_ns() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

__global__ void stamped_spin(int64_t* stamps, int64_t amount, int64_t number) {
  const int64_t first_ns = global_timer_ns();
  const long long first = clock64();
  long long last = first;
  do {
    last = clock64();
  } while (last - first < amount);
  const int64_t last_ns = global_timer_ns();
  stamps[0] = first_ns;
  stamps[1] = last_ns;
  stamps[2] = first;
  stamps[3] = last;
  stamps[4] = number;
}

// Many blocks, as an elementwise kernel has them. Every block has a place of its own: atomics on one address
// are done one after the other, and outlast the last block's stamp by up to 10 us.
__device__ void stamp_block(int64_t* stamps, int64_t first_ns, int64_t number) {
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  stamps[1 + blockIdx.x] = first_ns;
  stamps[1 + gridDim.x + blockIdx.x] = global_timer_ns();
  if (blockIdx.x == 0) {
    stamps[0] = number;
  }
}

__global__ void wide_spin(int64_t* stamps, int64_t amount, int64_t number) {
  const int64_t first_ns = global_timer_ns();
  const long long first = clock64();
  while (clock64() - first < amount) {
  }
  stamp_block(stamps, first_ns, number);
}

__global__ void wide_copy(int64_t* stamps, const int16_t* from, int16_t* to, int64_t number) {
  const int64_t first_ns = global_timer_ns();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  to[i] = from[i];
  stamp_block(stamps, first_ns, number);
}

__global__ void steps_kernel(int64_t* stamps, int64_t count) {
  int64_t seen = global_timer_ns();
  for (int64_t i = 0; i < count; ++i) {
    int64_t now = seen;
    while (now == seen) {
      now = global_timer_ns();
    }
    stamps[i] = now;
    seen = now;
  }
}

const char* outcome() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_spin(int64_t* stamps, int64_t amount, int64_t number, void* stream) {
  stamped_spin<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(stamps, amount, number);
  return outcome();
}

const char* launch_wide(int64_t* stamps, int64_t amount, int64_t blocks, int64_t number, void* stream) {
  wide_spin<<<static_cast<unsigned>(blocks), kWideThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      stamps, amount, number);
  return outcome();
}

const char* launch_copy(
    int64_t* stamps, const int16_t* from, int16_t* to, int64_t blocks, int64_t number, void* stream) {
  wide_copy<<<static_cast<unsigned>(blocks), kWideThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      stamps, from, to, number);
  return outcome();
}

const char* launch_steps(int64_t* stamps, int64_t count, void* stream) {
  steps_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(stamps, count);
  return outcome();
}

}  // namespace mini_kv_calibration
