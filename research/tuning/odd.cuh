// Bias + ReLU for rows that are no whole number of packs: the dense matrix is one run of packs all the
// same, a pack begins at any column, and may end in the next row.
#pragma once

#include "pointwise.cuh"

// Ways to the bias of a pack. kWrapped: each lane by itself, its column wrapped by a selection. kSplit: each
// lane by itself, packs within a row apart from the few that end in the next. kShifted: those within a row
// from the two aligned packs of the bias that they touch (the bias must be aligned), shifted into place.
enum Lookup { kWrapped, kSplit, kShifted };

// The sixteen bytes that begin `lanes` elements into two neighbouring packs.
template <typename T>
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, unsigned lanes) {
  const unsigned bits = lanes * 8 * sizeof(T);  // below 128
  unsigned word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    word[i] = bits & 64 ? word[i + 2] : word[i];
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    word[i] = bits & 32 ? word[i + 1] : word[i];
  }
  return {
      __funnelshift_r(word[0], word[1], bits),
      __funnelshift_r(word[1], word[2], bits),
      __funnelshift_r(word[2], word[3], bits),
      __funnelshift_r(word[3], word[4], bits)};
}

template <typename T, int kLookup>
__device__ __forceinline__ uint4 bias_of(const T* __restrict__ bias, unsigned column, unsigned hidden) {
  constexpr unsigned kLanes = Lanes<T>::kLanes;
  uint4 pack;
  T lane[kLanes];
  if constexpr (kLookup == kShifted) {
    const unsigned base = column / kLanes * kLanes;
    if (base + 2 * kLanes <= hidden) {
      const auto* at = reinterpret_cast<const uint4*>(bias + base);
      return shifted<T>(load16<kNc>(at), load16<kNc>(at + 1), column - base);
    }
  }
  if (kLookup == kSplit && column + kLanes <= hidden) {
#pragma unroll
    for (unsigned i = 0; i < kLanes; ++i) {
      lane[i] = bias[column + i];
    }
  } else {
#pragma unroll
    for (unsigned i = 0; i < kLanes; ++i) {
      const unsigned at = column + i;
      lane[i] = bias[at < hidden ? at : at - hidden];
    }
  }
  memcpy(&pack, lane, sizeof(pack));
  return pack;
}

template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kLookup>
__global__ void __launch_bounds__(kBlock) bias_odd(
    const uint4* __restrict__ x,
    const T* __restrict__ bias,
    uint4* __restrict__ out,
    unsigned packs,
    unsigned rest,
    unsigned hidden,
    unsigned multiplier,
    unsigned shift) {
  constexpr unsigned kLanes = Lanes<T>::kLanes;
  constexpr int kMath = sizeof(T) == 4 ? kFloat : kPaired;
  const unsigned first = blockIdx.x * (kBlock * kPacks) + threadIdx.x;
  const auto column = [&](unsigned n) { return n - (__umulhi(n, multiplier) >> shift) * hidden; };
  uint4 v[kPacks];
  uint4 b[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kBlock < packs) {
      v[k] = load16<kLoad>(x + first + k * kBlock);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kBlock;
    if (p < packs) {
      b[k] = bias_of<T, kLookup>(bias, column(p * kLanes), hidden);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * kBlock < packs) {
      store16<kStore>(out + first + k * kBlock, added<T, kMath, true>(v[k], b[k]));
    }
  }
  if (first < rest) {
    const unsigned n = packs * kLanes + first;
    const float sum =
        static_cast<float>(reinterpret_cast<const T*>(x)[n]) + static_cast<float>(bias[column(n)]);
    reinterpret_cast<T*>(out)[n] = static_cast<T>(sum < 0.0f ? 0.0f : sum);
  }
}

template <typename T, int kBlock, int kPacks, int kLoad, int kStore, int kLookup>
void launch_bias_odd(
    const void* x, const void* bias, void* out, int64_t rows, int64_t hidden, double, void* stream) {
  const int64_t count = rows * hidden;
  const auto packs = static_cast<unsigned>(count / Lanes<T>::kLanes);
  unsigned bits = 1;
  while ((int64_t{1} << bits) < hidden) {
    ++bits;
  }
  const auto multiplier = static_cast<unsigned>(((uint64_t{1} << (31 + bits)) + hidden - 1) / hidden);
  bias_odd<T, kBlock, kPacks, kLoad, kStore, kLookup>
      <<<(packs + kBlock * kPacks - 1) / (kBlock * kPacks),
         kBlock,
         0,
         static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint4*>(x),
          static_cast<const T*>(bias),
          static_cast<uint4*>(out),
          packs,
          static_cast<unsigned>(count % Lanes<T>::kLanes),
          static_cast<unsigned>(hidden),
          multiplier,
          bits - 1);
}
