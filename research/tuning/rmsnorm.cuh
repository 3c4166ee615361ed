// rmsnorm variants. `held`: the row in registers; a block of kThreads threads takes kRows rows at once,
// kPacks packs a thread and row. `bulk`: rows come through shared memory, copied by cp.async.bulk.
#pragma once

#include "memory.cuh"

enum WeightWhen { kLate, kEarly, kFirst };

// The sum over a block of kRows values a thread, one barrier. Each warp folds its kRows sums; then every
// warp reads all warps' sums and folds them again, lanes spread over rows.
template <int kThreads, int kRows>
__device__ __forceinline__ void block_sums(float (&sum)[kRows], float* shared) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = threadIdx.x % kWarp;
  if constexpr (kRows == 1) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      sum[0] += __shfl_xor_sync(kAllLanes, sum[0], offset);
    }
    if constexpr (kWarps > 1) {
      if (lane == 0) {
        shared[threadIdx.x / kWarp] = sum[0];
      }
      __syncthreads();
      sum[0] = shared[0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        sum[0] += shared[w];
      }
    }
    return;
  } else {
    // Each step halves the rows a lane is responsible for and doubles the lanes folded into it.
    int offset = kWarp / 2;
#pragma unroll
    for (int rows = kRows / 2; rows > 0; rows /= 2) {
      const bool upper = lane & offset;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const float give = upper ? sum[r] : sum[r + rows];
        const float keep = upper ? sum[r + rows] : sum[r];
        sum[r] = keep + __shfl_xor_sync(kAllLanes, give, offset);
      }
      offset /= 2;
    }
    constexpr int kLanesPerRow = kWarp / kRows;
    float mine = sum[0];
#pragma unroll
    for (int o = kLanesPerRow / 2; o > 0; o /= 2) {
      mine += __shfl_xor_sync(kAllLanes, mine, o);
    }
    // Lane bits were given from the top: lane / kLanesPerRow is the row it holds.
    if constexpr (kWarps > 1) {
      const int row = lane / kLanesPerRow;
      if (lane % kLanesPerRow == 0) {
        shared[row * kWarps + threadIdx.x / kWarp] = mine;
      }
      __syncthreads();
      mine = 0;
#pragma unroll
      for (int w = 0; w < kWarps; w += kLanesPerRow) {
        const int from = w + lane % kLanesPerRow;
        if (kWarps % kLanesPerRow == 0 || from < kWarps) {
          mine += shared[row * kWarps + from];
        }
      }
#pragma unroll
      for (int o = kLanesPerRow / 2; o > 0; o /= 2) {
        mine += __shfl_xor_sync(kAllLanes, mine, o);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[r] = __shfl_sync(kAllLanes, mine, r * kLanesPerRow);
    }
  }
}

template <typename T>
__device__ __forceinline__ float squares_of(uint4 v) {
  constexpr int kLanes = Lanes<T>::kLanes;
  float f[kLanes];
  Lanes<T>::widen(v, f);
  float even = 0;
  float odd = 0;
#pragma unroll
  for (int i = 0; i < kLanes; i += 2) {
    even += f[i] * f[i];
    odd += f[i + 1] * f[i + 1];
  }
  return even + odd;
}

template <typename T>
__device__ __forceinline__ uint4 scaled(uint4 v, float inverse_rms, uint4 w) {
  constexpr int kLanes = Lanes<T>::kLanes;
  float f[kLanes];
  float g[kLanes];
  Lanes<T>::widen(v, f);
  Lanes<T>::widen(w, g);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    f[i] = f[i] * inverse_rms * g[i];
  }
  return Lanes<T>::round(f);
}

__device__ __forceinline__ void keep(uint4& v) {
  asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}

// kGroups > 1 only with kThreads == 32: a warp a row (or kRows rows), kGroups warps a block.
template <
    typename T,
    int kThreads,
    int kPacks,
    int kRows,
    int kGroups,
    int kLoad,
    int kStore,
    int kWhen,
    bool kExact,
    bool kKeep,
    int kMinBlocks>
__global__ void __launch_bounds__(kThreads* kGroups, kMinBlocks) held(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    int rows,
    int packs,
    float eps,
    float inverse_hidden) {
  __shared__ float shared[2][kRows * (kThreads / kWarp)];
  const int t = threadIdx.x;
  int phase = 0;
  uint4 w[kPacks];
  if constexpr (kWhen == kFirst) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (kExact || t + k * kThreads < packs) {
        w[k] = load16<kNc>(weight + t + k * kThreads);
      }
    }
  }
  const int width = kExact ? kPacks * kThreads : packs;
  for (int group = blockIdx.x * kGroups + threadIdx.y; group * kRows < rows;
       group += gridDim.x * kGroups) {
    const int first = group * kRows;
    uint4 v[kRows][kPacks];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        v[r][k] = uint4{0, 0, 0, 0};
        if ((kRows == 1 || first + r < rows) && (kExact || t + k * kThreads < packs)) {
          v[r][k] = load16<kLoad>(x + int64_t{first + r} * width + t + k * kThreads);
        }
      }
    }
    if constexpr (kWhen == kEarly) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        if (kExact || t + k * kThreads < packs) {
          w[k] = load16<kNc>(weight + t + k * kThreads);
        }
      }
    }
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[r] = 0;
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        sum[r] += squares_of<T>(v[r][k]);
        if constexpr (kKeep) {
          keep(v[r][k]);
        }
      }
    }
    block_sums<kThreads, kRows>(sum, shared[phase]);
    phase ^= 1;  // the next group writes the other half, so one barrier is enough
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float inverse_rms = rsqrtf(sum[r] * inverse_hidden + eps);
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        if ((kRows == 1 || first + r < rows) && (kExact || t + k * kThreads < packs)) {
          if constexpr (kKeep && kWhen != kLate && kRows == 1) {
            keep(w[k]);
          }
          const uint4 by = kWhen == kLate ? weight[t + k * kThreads] : w[k];
          store16<kStore>(
              out + int64_t{first + r} * width + t + k * kThreads, scaled<T>(v[r][k], inverse_rms, by));
        }
      }
    }
  }
}

// kPerSm 0: a block for every group; else at most kPerSm blocks an SM, each walking over groups.
template <
    typename T,
    int kThreads,
    int kPacks,
    int kRows,
    int kGroups,
    int kLoad,
    int kStore,
    int kWhen,
    bool kExact,
    bool kKeep,
    int kMinBlocks,
    int kPerSm>
void launch_held(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  const int packs = static_cast<int>(hidden / Lanes<T>::kLanes);
  int64_t blocks = (rows + kRows * kGroups - 1) / (kRows * kGroups);
  if (kPerSm > 0 && blocks > int64_t{kPerSm} * sm_count()) {
    blocks = int64_t{kPerSm} * sm_count();
  }
  held<T, kThreads, kPacks, kRows, kGroups, kLoad, kStore, kWhen, kExact, kKeep, kMinBlocks>
      <<<static_cast<unsigned>(blocks), dim3(kThreads, kGroups), 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const uint4*>(w),
          static_cast<uint4*>(out),
          static_cast<int>(rows),
          packs,
          static_cast<float>(eps),
          1.0f / static_cast<float>(hidden));
}

// ------------------------------------------------------------------------------------------- bulk

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void start_copy(
    void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from),
      "r"(bytes),
      "r"(shared_address(barrier))
      : "memory");
}

// Bounded: a broken variant must end, not hang the device.
__device__ __forceinline__ void wait_copy(uint64_t* barrier, unsigned parity) {
  for (int tries = 0; tries < 1000000; ++tries) {
    unsigned done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    if (done) {
      return;
    }
  }
}

template <typename T, int kThreads, int kPacks, int kStages, int kStore, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) bulk(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    int rows,
    int packs,
    float eps,
    float inverse_hidden) {
  extern __shared__ __align__(128) uint4 rows_held[];
  __shared__ uint64_t full[kStages];
  __shared__ float shared[2][kThreads / kWarp];
  const int t = threadIdx.x;
  const unsigned row_bytes = packs * 16;
  if (t == 0) {
    for (int s = 0; s < kStages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[s])));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int s = 0; s < kStages; ++s) {
      const int64_t row = blockIdx.x + int64_t{s} * gridDim.x;
      if (row < rows) {
        start_copy(rows_held + s * packs, x + row * packs, row_bytes, &full[s]);
      }
    }
  }
  uint4 w[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (t + k * kThreads < packs) {
      w[k] = load16<kNc>(weight + t + k * kThreads);
    }
  }
  __syncthreads();
  int stage = 0;
  unsigned parity = 0;
  int phase = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    wait_copy(&full[stage], parity);
    uint4 v[kPacks];
    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      v[k] = uint4{0, 0, 0, 0};
      if (t + k * kThreads < packs) {
        v[k] = rows_held[stage * packs + t + k * kThreads];
      }
      sum[0] += squares_of<T>(v[k]);
      keep(v[k]);
    }
    block_sums<kThreads, 1>(sum, shared[phase]);
    phase ^= 1;
    // Behind block_sums' barrier all threads have taken their part of this stage.
    const int64_t next = row + int64_t{kStages} * gridDim.x;
    if (t == 0 && next < rows) {
      start_copy(rows_held + stage * packs, x + next * packs, row_bytes, &full[stage]);
    }
    const float inverse_rms = rsqrtf(sum[0] * inverse_hidden + eps);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      keep(w[k]);
      if (t + k * kThreads < packs) {
        store16<kStore>(out + row * packs + t + k * kThreads, scaled<T>(v[k], inverse_rms, w[k]));
      }
    }
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

template <typename T, int kThreads, int kPacks, int kStages, int kStore, int kMinBlocks, int kPerSm>
void launch_bulk(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  const int packs = static_cast<int>(hidden / Lanes<T>::kLanes);
  const int bytes = kStages * packs * 16;
  auto* kernel = bulk<T, kThreads, kPacks, kStages, kStore, kMinBlocks>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024);
  (void)allowed;
  int64_t blocks = rows;
  if (blocks > int64_t{kPerSm} * sm_count()) {
    blocks = int64_t{kPerSm} * sm_count();
  }
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(x),
      static_cast<const uint4*>(w),
      static_cast<uint4*>(out),
      static_cast<int>(rows),
      packs,
      static_cast<float>(eps),
      1.0f / static_cast<float>(hidden));
}
