// Rmsnorm in forms for rows longer than 512 packs (wide_grid.py): rows read twice, rows staged in shared
// memory by the threads themselves, rows spread over a cluster of blocks.
#pragma once

#include "oneshot.cuh"

// The row is read again after its sum is known, from the L1 or L2 cache: few registers, many blocks at once.
// Loads are volatile ones only (no kPlain), or the compiler would keep the row in registers after all.
template <
    typename T,
    int kThreads,
    int kPacks,
    int kLoad,
    int kAgain,
    int kStore,
    bool kEarlyWeight,
    int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) reread_once(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    float eps,
    float inverse_hidden) {
  static_assert(kLoad != kPlain && kAgain != kPlain, "see above");
  constexpr int kAtOnce = kPacks < 4 ? kPacks : 4;
  __shared__ float shared[kThreads / kWarp];
  const int64_t start = int64_t{blockIdx.x} * (kThreads * kPacks) + threadIdx.x;
  float sum[1] = {0};
  uint4 v[kAtOnce];
  uint4 w[kAtOnce];
#pragma unroll
  for (int top = 0; top < kPacks; top += kAtOnce) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      v[k] = load16<kLoad>(x + start + (top + k) * kThreads);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      sum[0] += squares_of<T>(v[k]);
    }
  }
  if constexpr (kEarlyWeight) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      w[k] = load16<kNc>(weight + threadIdx.x + k * kThreads);
    }
  }
  block_sums<kThreads, 1>(sum, shared);
  const float inverse_rms = rsqrtf(sum[0] * inverse_hidden + eps);
#pragma unroll
  for (int top = 0; top < kPacks; top += kAtOnce) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      v[k] = load16<kAgain>(x + start + (top + k) * kThreads);
      if (!kEarlyWeight || top > 0) {
        w[k] = load16<kNc>(weight + threadIdx.x + (top + k) * kThreads);
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      store16<kStore>(out + start + (top + k) * kThreads, scaled<T>(v[k], inverse_rms, w[k]));
    }
  }
}

template <
    typename T,
    int kThreads,
    int kPacks,
    int kLoad,
    int kAgain,
    int kStore,
    bool kEarlyWeight,
    int kMinBlocks>
void launch_reread(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  static_assert(kPacks < 4 || kPacks % 4 == 0, "whole chunks only");
  reread_once<T, kThreads, kPacks, kLoad, kAgain, kStore, kEarlyWeight, kMinBlocks>
      <<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const uint4*>(w),
          static_cast<uint4*>(out),
          static_cast<float>(eps),
          1.0f / static_cast<float>(hidden));
}

// Each thread copies its own packs to shared memory and reads them from there twice: bytes under way cost no
// registers, and nobody waits for another thread's copy.
template <
    typename T,
    int kThreads,
    int kPacks,
    int kRows,
    bool kHint,
    int kStore,
    int kWhen,
    int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) staged_once(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    int rows,
    float eps,
    float inverse_hidden) {
  constexpr int kWidth = kThreads * kPacks;
  extern __shared__ __align__(128) uint4 staged_rows[];
  __shared__ float shared[kRows * (kThreads / kWarp)];
  const int t = threadIdx.x;
  const int first = blockIdx.x * kRows;
  const uint64_t policy = evict_first_policy();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int at = r * kWidth + t + k * kThreads;
      if (kRows == 1 || first + r < rows) {
        const uint4* from = x + int64_t{first} * kWidth + at;
        if constexpr (kHint) {
          asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                           shared_address(staged_rows + at)),
                       "l"(from),
                       "l"(policy)
                       : "memory");
        } else {
          asm volatile(
              "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(staged_rows + at)),
              "l"(from)
              : "memory");
        }
      } else {
        staged_rows[at] = uint4{0, 0, 0, 0};
      }
    }
  }
  uint4 w[kPacks];
  if constexpr (kWhen == kEarly) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      w[k] = load16<kNc>(weight + t + k * kThreads);
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  float sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      sum[r] += squares_of<T>(staged_rows[r * kWidth + t + k * kThreads]);
    }
  }
  block_sums<kThreads, kRows>(sum, shared);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float inverse_rms = rsqrtf(sum[r] * inverse_hidden + eps);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (kRows == 1 || first + r < rows) {
        const int at = r * kWidth + t + k * kThreads;
        const uint4 by = kWhen == kEarly ? w[k] : weight[t + k * kThreads];
        store16<kStore>(out + int64_t{first} * kWidth + at, scaled<T>(staged_rows[at], inverse_rms, by));
      }
    }
  }
}

template <
    typename T,
    int kThreads,
    int kPacks,
    int kRows,
    bool kHint,
    int kStore,
    int kWhen,
    int kMinBlocks>
void launch_staged(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  auto* kernel = staged_once<T, kThreads, kPacks, kRows, kHint, kStore, kWhen, kMinBlocks>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024);
  (void)allowed;
  kernel<<<
      static_cast<unsigned>((rows + kRows - 1) / kRows),
      kThreads,
      kRows * kThreads * kPacks * 16,
      static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(x),
      static_cast<const uint4*>(w),
      static_cast<uint4*>(out),
      static_cast<int>(rows),
      static_cast<float>(eps),
      1.0f / static_cast<float>(hidden));
}

// A row over kCluster neighbouring blocks, in registers; their warps' sums meet in each other's shared
// memory, behind the cluster's barrier in place of the block's.
template <typename T, int kCluster, int kThreads, int kPacks, int kLoad, int kStore, int kMinBlocks>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, kMinBlocks) cluster_once(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    float eps,
    float inverse_hidden) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float sums[kCluster * kWarps];
  const int t = threadIdx.x;
  const int part = blockIdx.x % kCluster;
  const int column = part * (kThreads * kPacks) + t;
  const int64_t start = int64_t{blockIdx.x} * (kThreads * kPacks) + t;
  uint4 v[kPacks];
  uint4 w[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    v[k] = load16<kLoad>(x + start + k * kThreads);
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;");  // a block's memory is there once it runs
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    w[k] = load16<kNc>(weight + column + k * kThreads);
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    sum += squares_of<T>(v[k]);
    keep(v[k]);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  if (t % kWarp < kCluster) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(shared_address(&sums[part * kWarps + t / kWarp])), "r"(t % kWarp));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(sum) : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  sum = sums[0];
#pragma unroll
  for (int i = 1; i < kCluster * kWarps; ++i) {
    sum += sums[i];
  }
  const float inverse_rms = rsqrtf(sum * inverse_hidden + eps);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    keep(w[k]);
    store16<kStore>(out + start + k * kThreads, scaled<T>(v[k], inverse_rms, w[k]));
  }
}

template <typename T, int kCluster, int kThreads, int kPacks, int kLoad, int kStore, int kMinBlocks>
void launch_cluster(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  cluster_once<T, kCluster, kThreads, kPacks, kLoad, kStore, kMinBlocks>
      <<<static_cast<unsigned>(rows * kCluster), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const uint4*>(w),
          static_cast<uint4*>(out),
          static_cast<float>(eps),
          1.0f / static_cast<float>(hidden));
}
