// vector add and bias + relu variants. kMath: in float and rounded, or two half-width lanes at once.
#pragma once

#include "memory.cuh"

enum Math { kFloat, kPaired };

template <typename T>
struct Two;
template <>
struct Two<__half> {
  using Type = __half2;
};
template <>
struct Two<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};

template <typename T, int kMath, bool kRelu>
__device__ __forceinline__ uint4 added(uint4 a, uint4 b) {
  if constexpr (kMath == kPaired) {
    using P = typename Two<T>::Type;
    auto* pa = reinterpret_cast<P*>(&a);
    const auto* pb = reinterpret_cast<const P*>(&b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      P s = __hadd2(pa[i], pb[i]);
      if constexpr (kRelu) {
        P zero;
        zero.x = T(0.0f);
        zero.y = T(0.0f);
        s = __hmax2_nan(s, zero);
      }
      pa[i] = s;
    }
    return a;
  } else {
    constexpr int kLanes = Lanes<T>::kLanes;
    float f[kLanes];
    float g[kLanes];
    Lanes<T>::widen(a, f);
    Lanes<T>::widen(b, g);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      f[i] += g[i];
      if constexpr (kRelu) {
        f[i] = f[i] < 0.0f ? 0.0f : f[i];
      }
    }
    return Lanes<T>::round(f);
  }
}

// Tiles: kBx packs of columns, kBy * kRows rows; a thread keeps one pack of the bias.
template <typename T, int kBx, int kBy, int kRows, int kLoad, int kStore, int kMath, bool kBiasFirst>
__global__ void __launch_bounds__(kBx* kBy) bias_tile(
    const uint4* __restrict__ x,
    const uint4* __restrict__ bias,
    uint4* __restrict__ out,
    int rows,
    int packs) {
  const int column = blockIdx.x * kBx + threadIdx.x;
  if (column >= packs) {
    return;
  }
  uint4 b;
  if constexpr (kBiasFirst) {
    b = load16<kNc>(bias + column);
  }
  for (int top = blockIdx.y * (kBy * kRows) + threadIdx.y; top < rows;
       top += gridDim.y * (kBy * kRows)) {
    const int64_t at = int64_t{top} * packs + column;
    uint4 v[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (top + k * kBy < rows) {
        v[k] = load16<kLoad>(x + at + int64_t{k * kBy} * packs);
      }
    }
    if constexpr (!kBiasFirst) {
      b = load16<kNc>(bias + column);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (top + k * kBy < rows) {
        store16<kStore>(out + at + int64_t{k * kBy} * packs, added<T, kMath, true>(v[k], b));
      }
    }
  }
}

// kPerSm 0: a block for every tile; else the rows are walked by at most so many blocks.
template <
    typename T,
    int kBx,
    int kBy,
    int kRows,
    int kLoad,
    int kStore,
    int kMath,
    bool kBiasFirst,
    int kPerSm>
void launch_bias_tile(
    const void* x, const void* bias, void* out, int64_t rows, int64_t hidden, double, void* stream) {
  const int packs = static_cast<int>(hidden / Lanes<T>::kLanes);
  const int64_t across = (packs + kBx - 1) / kBx;
  int64_t down = (rows + kBy * kRows - 1) / (kBy * kRows);
  if (kPerSm > 0) {
    const int64_t limit = int64_t{kPerSm} * sm_count() / across;
    down = down > limit ? (limit > 0 ? limit : 1) : down;
  }
  down = down > 65535 ? 65535 : down;
  bias_tile<T, kBx, kBy, kRows, kLoad, kStore, kMath, kBiasFirst>
      <<<dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
         dim3(kBx, kBy),
         0,
         static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const uint4*>(bias),
          static_cast<uint4*>(out),
          static_cast<int>(rows),
          packs);
}
