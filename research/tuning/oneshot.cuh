// Kernels of the focused run: one launch, no loops, whole packs only. What they try beyond the others: asking
// for the output's address early (kTouch), and rows that leave through the bulk copy engine as well.
#pragma once

#include "pointwise.cuh"
#include "rmsnorm.cuh"

template <typename T>
constexpr int kMathOf = sizeof(T) == 4 ? kFloat : kPaired;

// The first store of a block waits for the translation of its address; this asks for it with the loads.
template <int kTouch>
__device__ __forceinline__ void touch(const void* at) {
  if constexpr (kTouch == 1) {
    if (threadIdx.x == 0) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    }
  } else if constexpr (kTouch == 2) {
    if (threadIdx.x % kWarp == 0) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    }
  }
}

enum Op { kCopy, kAdd };

// kSpread: a thread's packs lie a grid apart instead of a block apart.
template <typename T, int kOp, int kBlock, int kPacks, int kLoad, int kStore, int kTouch, bool kSpread>
__global__ void __launch_bounds__(kBlock) run_once(
    const uint4* __restrict__ a, const uint4* __restrict__ b, uint4* __restrict__ out, int64_t packs) {
  const int64_t step = kSpread ? int64_t{gridDim.x} * kBlock : kBlock;
  const int64_t first = int64_t{blockIdx.x} * (kSpread ? kBlock : kBlock * kPacks) + threadIdx.x;
  uint4 va[kPacks];
  uint4 vb[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * step < packs) {
      va[k] = load16<kLoad>(a + first + k * step);
      if constexpr (kOp == kAdd) {
        vb[k] = load16<kLoad>(b + first + k * step);
      }
    }
  }
  touch<kTouch>(out + first);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * step < packs) {
      if constexpr (kOp == kAdd) {
        store16<kStore>(out + first + k * step, added<T, kMathOf<T>, false>(va[k], vb[k]));
      } else {
        store16<kStore>(out + first + k * step, va[k]);
      }
    }
  }
}

template <typename T, int kOp, int kBlock, int kPacks, int kLoad, int kStore, int kTouch, bool kSpread>
void launch_once(
    const void* a, const void* b, void* out, int64_t rows, int64_t hidden, double, void* stream) {
  const int64_t packs = rows * hidden / Lanes<T>::kLanes;
  const int64_t blocks = (packs + kBlock * kPacks - 1) / (kBlock * kPacks);
  run_once<T, kOp, kBlock, kPacks, kLoad, kStore, kTouch, kSpread>
      <<<static_cast<unsigned>(blocks), kBlock, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(a), static_cast<const uint4*>(b), static_cast<uint4*>(out), packs);
}

template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kTouch, bool kBiasFirst>
__global__ void __launch_bounds__(kBlock) bias_once(
    const uint4* __restrict__ x,
    const uint4* __restrict__ bias,
    uint4* __restrict__ out,
    unsigned count,
    unsigned packs,
    unsigned multiplier,
    unsigned shift) {
  const unsigned first = blockIdx.x * (kBlock * kPacks) + threadIdx.x;
  uint4 v[kPacks];
  uint4 b[kPacks];
  const auto bias_loads = [&] {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const unsigned p = first + k * kBlock;
      if (p < count) {
        b[k] = load16<kNc>(bias + (p - (__umulhi(p, multiplier) >> shift) * packs));
      }
    }
  };
  if constexpr (kBiasFirst) {
    bias_loads();
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kBlock < count) {
      v[k] = load16<kLoad>(x + first + k * kBlock);
    }
  }
  if constexpr (!kBiasFirst) {
    bias_loads();
  }
  touch<kTouch>(out + first);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kBlock < count) {
      store16<kStore>(out + first + k * kBlock, added<T, kMathOf<T>, true>(v[k], b[k]));
    }
  }
}

template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kTouch, bool kBiasFirst>
void launch_bias_once(
    const void* x, const void* bias, void* out, int64_t rows, int64_t hidden, double, void* stream) {
  const auto packs = static_cast<unsigned>(hidden / Lanes<T>::kLanes);
  const auto count = static_cast<unsigned>(rows * packs);
  unsigned bits = 0;
  while ((1u << bits) < packs) {
    ++bits;
  }
  const auto multiplier = static_cast<unsigned>(((uint64_t{1} << (31 + bits)) + packs - 1) / packs);
  const unsigned blocks = (count + kBlock * kPacks - 1) / (kBlock * kPacks);
  bias_once<T, kBlock, kPacks, kLoad, kStore, kTouch, kBiasFirst>
      <<<blocks, kBlock, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const uint4*>(bias),
          static_cast<uint4*>(out),
          count,
          packs,
          multiplier,
          bits - 1);
}

// A row of exactly kThreads * kPacks packs in registers, kRows rows a block. kMinBlocks 0: no bound.
template <
    typename T,
    int kThreads,
    int kPacks,
    int kRows,
    int kLoad,
    int kStore,
    int kWhen,
    int kTouch,
    int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) row_once(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    int rows,
    float eps,
    float inverse_hidden) {
  constexpr int kWidth = kThreads * kPacks;
  __shared__ float shared[kRows * (kThreads / kWarp)];
  const int t = threadIdx.x;
  const int first = blockIdx.x * kRows;
  uint4 w[kPacks];
  const auto weight_loads = [&] {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      w[k] = load16<kNc>(weight + t + k * kThreads);
    }
  };
  if constexpr (kWhen == kFirst) {
    weight_loads();
  }
  uint4 v[kRows][kPacks];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      v[r][k] = uint4{0, 0, 0, 0};
      if (kRows == 1 || first + r < rows) {
        v[r][k] = load16<kLoad>(x + int64_t{first + r} * kWidth + t + k * kThreads);
      }
    }
  }
  if constexpr (kWhen == kEarly) {
    weight_loads();
  }
  touch<kTouch>(out + int64_t{first} * kWidth + t);
  float sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      sum[r] += squares_of<T>(v[r][k]);
      keep(v[r][k]);
    }
  }
  block_sums<kThreads, kRows>(sum, shared);
  if constexpr (kWhen == kLate) {
    weight_loads();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float inverse_rms = rsqrtf(sum[r] * inverse_hidden + eps);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (kRows == 1 || first + r < rows) {
        if constexpr (kRows == 1) {
          keep(w[k]);
        }
        store16<kStore>(
            out + int64_t{first + r} * kWidth + t + k * kThreads, scaled<T>(v[r][k], inverse_rms, w[k]));
      }
    }
  }
}

template <
    typename T,
    int kThreads,
    int kPacks,
    int kRows,
    int kLoad,
    int kStore,
    int kWhen,
    int kTouch,
    int kMinBlocks>
void launch_row_once(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  const auto blocks = static_cast<unsigned>((rows + kRows - 1) / kRows);
  row_once<T, kThreads, kPacks, kRows, kLoad, kStore, kWhen, kTouch, kMinBlocks>
      <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const uint4*>(w),
          static_cast<uint4*>(out),
          static_cast<int>(rows),
          static_cast<float>(eps),
          1.0f / static_cast<float>(hidden));
}

// kRows rows a block, each copied in by the bulk engine at once; kBulkOut: also out again.
template <typename T, int kThreads, int kPacks, int kRows, bool kHint, bool kBulkOut, int kStore>
__global__ void __launch_bounds__(kThreads) bulk_once(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    int rows,
    float eps,
    float inverse_hidden) {
  constexpr int kWidth = kThreads * kPacks;
  constexpr unsigned kBytes = kWidth * 16;
  extern __shared__ __align__(128) uint4 held_rows[];
  __shared__ uint64_t full[kRows];
  __shared__ float shared[kRows][kThreads / kWarp];
  const int t = threadIdx.x;
  const int first = blockIdx.x * kRows;
  if (t == 0) {
    for (int r = 0; r < kRows; ++r) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[r])));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int r = 0; r < kRows; ++r) {
      if (first + r < rows) {
        if constexpr (kHint) {
          asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                           shared_address(&full[r])),
                       "r"(kBytes)
                       : "memory");
          asm volatile(
              "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
              "[%1], %2, [%3], %4;" ::"r"(shared_address(held_rows + r * kWidth)),
              "l"(x + int64_t{first + r} * kWidth),
              "r"(kBytes),
              "r"(shared_address(&full[r])),
              "l"(evict_first_policy())
              : "memory");
        } else {
          start_copy(held_rows + r * kWidth, x + int64_t{first + r} * kWidth, kBytes, &full[r]);
        }
      }
    }
  }
  uint4 w[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    w[k] = load16<kNc>(weight + t + k * kThreads);
  }
  __syncthreads();
  for (int r = 0; r < kRows && first + r < rows; ++r) {
    wait_copy(&full[r], 0);
    uint4 v[kPacks];
    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      v[k] = held_rows[r * kWidth + t + k * kThreads];
      sum[0] += squares_of<T>(v[k]);
      keep(v[k]);
    }
    block_sums<kThreads, 1>(sum, shared[r]);
    const float inverse_rms = rsqrtf(sum[0] * inverse_hidden + eps);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      keep(w[k]);
      const uint4 value = scaled<T>(v[k], inverse_rms, w[k]);
      if constexpr (kBulkOut) {
        held_rows[r * kWidth + t + k * kThreads] = value;
      } else {
        store16<kStore>(out + int64_t{first + r} * kWidth + t + k * kThreads, value);
      }
    }
    if constexpr (kBulkOut) {
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncthreads();
      if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         out + int64_t{first + r} * kWidth),
                     "r"(shared_address(held_rows + r * kWidth)),
                     "r"(kBytes)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    }
  }
  if constexpr (kBulkOut) {
    if (t == 0) {
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
  }
}

template <typename T, int kThreads, int kPacks, int kRows, bool kHint, bool kBulkOut, int kStore>
void launch_bulk_once(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  auto* kernel = bulk_once<T, kThreads, kPacks, kRows, kHint, kBulkOut, kStore>;
  const int bytes = kRows * kThreads * kPacks * 16;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024);
  (void)allowed;
  const auto blocks = static_cast<unsigned>((rows + kRows - 1) / kRows);
  kernel<<<blocks, kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(x),
      static_cast<const uint4*>(w),
      static_cast<uint4*>(out),
      static_cast<int>(rows),
      static_cast<float>(eps),
      1.0f / static_cast<float>(hidden));
}

// Copy, add, or bias + ReLU where a block's kChunks chunks of kThreads * kPacks packs come in by the bulk
// engine, all asked for at once; kBulkOut: and leave the same way.
enum StreamOp { kStreamCopy, kStreamAdd, kStreamBias };

template <typename T, int kOp, int kThreads, int kPacks, int kChunks, bool kBulkOut, int kStore>
__global__ void __launch_bounds__(kThreads) stream(
    const uint4* __restrict__ a,
    const uint4* __restrict__ b,
    uint4* __restrict__ out,
    int64_t count,
    unsigned packs,
    unsigned multiplier,
    unsigned shift) {
  constexpr int kWidth = kThreads * kPacks;
  constexpr int kInputs = kOp == kStreamAdd ? 2 : 1;
  extern __shared__ __align__(128) uint4 chunks[];
  __shared__ uint64_t full[kChunks];
  const int t = threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * (kWidth * kChunks);
  const auto inside = [&](int c) {
    const int64_t left = count - first - c * kWidth;
    return left < 0 ? 0 : static_cast<int>(left < kWidth ? left : kWidth);
  };
  if (t == 0) {
    for (int c = 0; c < kChunks; ++c) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&full[c])), "r"(kInputs));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int c = 0; c < kChunks; ++c) {
      const unsigned bytes = inside(c) * 16;
      if (bytes) {
        start_copy(chunks + c * kInputs * kWidth, a + first + c * kWidth, bytes, &full[c]);
        if constexpr (kOp == kStreamAdd) {
          start_copy(chunks + (c * kInputs + 1) * kWidth, b + first + c * kWidth, bytes, &full[c]);
        }
      }
    }
  }
  uint4 bias[kChunks][kPacks];
  if constexpr (kOp == kStreamBias) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const auto p = static_cast<unsigned>(first + c * kWidth + t + k * kThreads);
        if (p < count) {
          bias[c][k] = load16<kNc>(b + (p - (__umulhi(p, multiplier) >> shift) * packs));
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int have = inside(c);
    if (!have) {
      break;
    }
    uint4* mine = chunks + c * kInputs * kWidth;
    wait_copy(&full[c], 0);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int p = t + k * kThreads;
      if (p < have) {
        uint4 v = mine[p];
        if constexpr (kOp == kStreamAdd) {
          v = added<T, kMathOf<T>, false>(v, mine[kWidth + p]);
        } else if constexpr (kOp == kStreamBias) {
          v = added<T, kMathOf<T>, true>(v, bias[c][k]);
        }
        if constexpr (kBulkOut) {
          mine[p] = v;
        } else {
          store16<kStore>(out + first + c * kWidth + p, v);
        }
      }
    }
    if constexpr (kBulkOut) {
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncthreads();
      if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         out + first + c * kWidth),
                     "r"(shared_address(mine)),
                     "r"(static_cast<unsigned>(have) * 16)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    }
  }
  if constexpr (kBulkOut) {
    if (t == 0) {
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
  }
}

template <typename T, int kOp, int kThreads, int kPacks, int kChunks, bool kBulkOut, int kStore>
void launch_stream(
    const void* a, const void* b, void* out, int64_t rows, int64_t hidden, double, void* stream_handle) {
  auto* kernel = stream<T, kOp, kThreads, kPacks, kChunks, kBulkOut, kStore>;
  constexpr int kWidth = kThreads * kPacks;
  const int bytes = kChunks * kWidth * 16 * (kOp == kStreamAdd ? 2 : 1);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024);
  (void)allowed;
  const int64_t count = rows * hidden / Lanes<T>::kLanes;
  const auto packs = static_cast<unsigned>(hidden / Lanes<T>::kLanes);
  unsigned bits = 0;
  while ((1u << bits) < packs && bits < 31) {
    ++bits;
  }
  const auto multiplier = static_cast<unsigned>(((uint64_t{1} << (31 + bits)) + packs - 1) / packs);
  const auto blocks = static_cast<unsigned>((count + kWidth * kChunks - 1) / (kWidth * kChunks));
  kernel<<<blocks, kThreads, bytes, static_cast<cudaStream_t>(stream_handle)>>>(
      static_cast<const uint4*>(a),
      static_cast<const uint4*>(b),
      static_cast<uint4*>(out),
      count,
      packs,
      multiplier,
      bits - 1);
}
