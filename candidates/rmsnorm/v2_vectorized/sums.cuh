// Sums over a block, returned to every thread. The order of additions is fixed: results repeat bit for bit.
#pragma once

namespace mini_kv_rmsnorm_v2 {

constexpr int kWarpThreads = 32;
constexpr int kMaxThreads = 1024;
constexpr unsigned kAllLanes = 0xffffffffu;

// Adds over groups of kWidth neighbouring lanes.
template <int kWidth, typename W>
__device__ __forceinline__ W lanes_sum(W value) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// For a block whose size is known only at launch, a whole number of warps: each warp adds within itself,
// then the few warp sums meet in shared memory. May be called again at once.
template <typename W>
__device__ W block_sum(W value) {
  value = lanes_sum<kWarpThreads>(value);
  const int warps = blockDim.x / kWarpThreads;
  if (warps == 1) {
    return value;
  }
  __shared__ W warp_sums[kMaxThreads / kWarpThreads];
  if (threadIdx.x % kWarpThreads == 0) {
    warp_sums[threadIdx.x / kWarpThreads] = value;
  }
  __syncthreads();
  W sum = 0;
  for (int warp = 0; warp < warps; ++warp) {
    sum += warp_sums[warp];
  }
  __syncthreads();  // the next row's first write must not overtake this read
  return sum;
}

// kRows sums a thread (a power of two) over kThreads threads, once a kernel, behind one barrier.
//
// A single row's warp sums are added up by every thread for itself. Several rows are folded into one
// another, which costs little more than one row's sum: at each step a lane gives half of its rows away and
// takes the other half from its partner, until each lane holds one row, number lane / (32 / kRows).
template <int kThreads, int kRows, typename W>
__device__ __forceinline__ void block_sums(W (&sum)[kRows]) {
  constexpr int kWarps = kThreads / kWarpThreads;
  if constexpr (kRows == 1) {
    sum[0] = lanes_sum<kWarpThreads>(sum[0]);
    if constexpr (kWarps > 1) {
      __shared__ W warp_sums[kWarps];
      if (threadIdx.x % kWarpThreads == 0) {
        warp_sums[threadIdx.x / kWarpThreads] = sum[0];
      }
      __syncthreads();
      sum[0] = warp_sums[0];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) {
        sum[0] += warp_sums[warp];
      }
    }
    return;
  }
  constexpr int kLanesPerRow = kWarpThreads / kRows;
  const int lane = threadIdx.x % kWarpThreads;
  int offset = kWarpThreads / 2;
#pragma unroll
  for (int half = kRows / 2; half > 0; half /= 2) {
    const bool upper = lane & offset;
#pragma unroll
    for (int r = 0; r < half; ++r) {
      const W given = upper ? sum[r] : sum[r + half];
      const W kept = upper ? sum[r + half] : sum[r];
      sum[r] = kept + __shfl_xor_sync(kAllLanes, given, offset);
    }
    offset /= 2;
  }
  W mine = lanes_sum<kLanesPerRow>(sum[0]);
  if constexpr (kWarps > 1) {
    __shared__ W warp_sums[kRows][kWarps];
    const int row = lane / kLanesPerRow;
    if (lane % kLanesPerRow == 0) {
      warp_sums[row][threadIdx.x / kWarpThreads] = mine;
    }
    __syncthreads();
    mine = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w += kLanesPerRow) {
      const int from = w + lane % kLanesPerRow;
      if (kWarps % kLanesPerRow == 0 || from < kWarps) {
        mine += warp_sums[row][from];
      }
    }
    mine = lanes_sum<kLanesPerRow>(mine);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = __shfl_sync(kAllLanes, mine, r * kLanesPerRow);
  }
}

}  // namespace mini_kv_rmsnorm_v2
