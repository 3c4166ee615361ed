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

template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kMath>
__global__ void __launch_bounds__(kBlock) add(
    const uint4* __restrict__ a, const uint4* __restrict__ b, uint4* __restrict__ out, int64_t packs) {
  const int64_t step = int64_t{gridDim.x} * kBlock * kPacks;
  for (int64_t first = int64_t{blockIdx.x} * kBlock * kPacks + threadIdx.x; first < packs;
       first += step) {
    uint4 va[kPacks];
    uint4 vb[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (first + k * kBlock < packs) {
        va[k] = load16<kLoad>(a + first + k * kBlock);
        vb[k] = load16<kLoad>(b + first + k * kBlock);
      }
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (first + k * kBlock < packs) {
        store16<kStore>(out + first + k * kBlock, added<T, kMath, false>(va[k], vb[k]));
      }
    }
  }
}

template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kMath, int kPerSm>
void launch_add(const void* a, const void* b, void* out, int64_t, int64_t hidden, double, void* stream) {
  const int64_t packs = hidden / Lanes<T>::kLanes;
  int64_t blocks = (packs + kBlock * kPacks - 1) / (kBlock * kPacks);
  if (kPerSm > 0 && blocks > int64_t{kPerSm} * sm_count()) {
    blocks = int64_t{kPerSm} * sm_count();
  }
  add<T, kBlock, kPacks, kLoad, kStore, kMath>
      <<<static_cast<unsigned>(blocks), kBlock, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(a), static_cast<const uint4*>(b), static_cast<uint4*>(out), packs);
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

// Flat: the matrix is one run of packs; a pack's column is the remainder by `packs`, through one multiply.
template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kMath>
__global__ void __launch_bounds__(kBlock) bias_flat(
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
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kBlock < count) {
      v[k] = load16<kLoad>(x + first + k * kBlock);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kBlock;
    if (p < count) {
      const unsigned row = __umulhi(p, multiplier) >> shift;
      b[k] = load16<kNc>(bias + (p - row * packs));
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kBlock < count) {
      store16<kStore>(out + first + k * kBlock, added<T, kMath, true>(v[k], b[k]));
    }
  }
}

template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kMath>
void launch_bias_flat(
    const void* x, const void* bias, void* out, int64_t rows, int64_t hidden, double, void* stream) {
  const auto packs = static_cast<unsigned>(hidden / Lanes<T>::kLanes);
  const auto count = static_cast<unsigned>(rows * packs);
  // Exact for a numerator below 2^31: the multiplier is ceil(2^(31 + bits) / packs), rounded up.
  unsigned bits = 0;
  while ((1u << bits) < packs) {
    ++bits;
  }
  const auto multiplier = static_cast<unsigned>(((uint64_t{1} << (31 + bits)) + packs - 1) / packs);
  const unsigned blocks = (count + kBlock * kPacks - 1) / (kBlock * kPacks);
  bias_flat<T, kBlock, kPacks, kLoad, kStore, kMath>
      <<<blocks, kBlock, 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const uint4*>(bias),
          static_cast<uint4*>(out),
          count,
          packs,
          multiplier,
          bits - 1);
}
