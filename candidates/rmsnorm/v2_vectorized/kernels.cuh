// A row is read from memory once: it waits in registers or in shared memory, sixteen bytes a unit, while its
// sum of squares is folded through warp shuffles and one barrier. The norm then costs what a copy of the row
// costs, which is the floor for this operator.
//
// Four kernels:
//   rmsnorm_rows_kernel      rows that fill a form of threads and units exactly: nothing is checked, and a
//                            block takes several rows at once behind one barrier;
//   rmsnorm_staged_kernel    the same for longer rows, which wait in shared memory;
//   rmsnorm_held_kernel      any row that a block's registers can hold, one row a block;
//   rmsnorm_streamed_kernel  longer rows, read twice.
// The last two also take rows off the 16-byte boundaries, an element at a time.
#pragma once

#include "sums.cuh"
#include "units.cuh"

namespace mini_kv_rmsnorm_v2 {

constexpr int kMaxUnitsHeld = 8;  // a thread's units; more would spill out of the registers

// How many units of rows an SM is to hold in flight: 64 KiB, a quarter of its registers. It is enough to
// keep memory busy and leaves each thread registers for the weight and the arithmetic; __launch_bounds__
// asks the compiler for so few registers that as many blocks fit.
constexpr int kUnitsInFlight = 4096;
constexpr int blocks_an_sm(int block_units) {
  return block_units < kUnitsInFlight ? kUnitsInFlight / block_units : 1;
}

// kRows rows of kThreads * kUnits units a group, kGroups groups a block (more than one only if each is a
// warp, which needs no barrier); kGivenUpFirst as ask_once() says.
//
// All rows of a group are asked for before the first is used, and the weight, which comes from the L2
// cache, at the same time or, where registers are short, during the reduction, which its way overlaps.
template <typename T, int kThreads, int kUnits, int kRows, int kGroups, bool kGivenUpFirst>
__global__ void __launch_bounds__(kThreads* kGroups, blocks_an_sm(kThreads * kUnits * kRows * kGroups))
    rmsnorm_rows_kernel(
        const uint4* __restrict__ x,
        const uint4* __restrict__ weight,
        uint4* __restrict__ out,
        int rows,
        float eps,
        float inverse_hidden) {
  static_assert(kGroups == 1 || kThreads == kWarpThreads, "groups share no barrier");
  using U = Packed<T>;
  constexpr int kWidth = kThreads * kUnits;
  const int first = (blockIdx.x * kGroups + threadIdx.y) * kRows;
  const int t = threadIdx.x;
  const auto exists = [&](int r) { return kRows * kGroups == 1 || first + r < rows; };

  uint4 held[kRows][kUnits];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      held[r][k] = uint4{0, 0, 0, 0};
      if (exists(r)) {
        held[r][k] = ask_once<kGivenUpFirst>(x + int64_t{first + r} * kWidth + t + k * kThreads);
      }
    }
  }
  uint4 weight_held[kUnits];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    weight_held[k] = ask_early(weight + t + k * kThreads);
  }

  float squares[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    squares[r] = 0;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      squares[r] += squares_of<U>(held[r][k]);
      keep_packed(held[r][k]);
    }
  }
  block_sums<kThreads, kRows>(squares);

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float inverse_rms = rsqrtf(squares[r] * inverse_hidden + eps);
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (exists(r)) {
        if constexpr (kRows == 1) {
          keep_packed(weight_held[k]);  // several rows share the widened weight
        }
        out[int64_t{first + r} * kWidth + t + k * kThreads] =
            scaled<U>(held[r][k], inverse_rms, weight_held[k]);
      }
    }
  }
}

// As many threads as an SM runs. Rows that wait in shared memory leave so many registers that all of them
// can be there.
constexpr int kThreadsAnSm = 2048;

// kRows rows of kThreads * kUnits units a block. Each thread copies its own units to shared memory and reads
// them from there twice, for the sum and for the result: nobody waits for another's copy, and the loads under
// way cost no registers, of which longer rows take so many that few blocks fit on an SM and a matrix needs
// a second wave of them.
//
// kRows * kThreads * kUnits units of dynamic shared memory.
template <typename T, int kThreads, int kUnits, int kRows>
__global__ void __launch_bounds__(kThreads, kThreadsAnSm / kThreads) rmsnorm_staged_kernel(
    const uint4* __restrict__ x,
    const uint4* __restrict__ weight,
    uint4* __restrict__ out,
    int rows,
    float eps,
    float inverse_hidden) {
  using U = Packed<T>;
  constexpr int kWidth = kThreads * kUnits;
  extern __shared__ uint4 staged[];
  const int first = blockIdx.x * kRows;
  const int t = threadIdx.x;
  const auto exists = [&](int r) { return r == 0 || first + r < rows; };  // a block has at least one

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (exists(r)) {
        const int at = t + k * kThreads;
        start_copy_once(staged + r * kWidth + at, x + int64_t{first + r} * kWidth + at);
      }
    }
  }
  uint4 weight_held[kUnits];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    weight_held[k] = ask_before_barrier(weight + t + k * kThreads);
  }
  wait_for_copies();

  float squares[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    squares[r] = 0;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (exists(r)) {
        squares[r] += squares_of<U>(staged[r * kWidth + t + k * kThreads]);
      }
    }
  }
  block_sums<kThreads, kRows>(squares);

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float inverse_rms = rsqrtf(squares[r] * inverse_hidden + eps);
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (exists(r)) {
        if constexpr (kRows == 1) {
          keep_packed(weight_held[k]);
        }
        const int at = t + k * kThreads;
        out[int64_t{first + r} * kWidth + at] =
            scaled<U>(staged[r * kWidth + at], inverse_rms, weight_held[k]);
      }
    }
  }
}

// `units` in a row, at most kUnits * blockDim.x.
template <typename U, int kUnits>
__global__ void __launch_bounds__(kMaxThreads) rmsnorm_held_kernel(
    const typename U::Bits* __restrict__ x,
    const typename U::Bits* __restrict__ weight,
    typename U::Bits* __restrict__ out,
    int64_t rows,
    int units,
    Wide<typename U::Element> eps) {
  // At eight units there is no room for the weight beside the row, and it is read afterwards.
  constexpr bool kWeightEarly = kUnits < kMaxUnitsHeld;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    typename U::Bits held[kUnits] = {};
    typename U::Bits weight_held[kUnits] = {};
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int u = threadIdx.x + k * blockDim.x;
      if (u < units) {
        held[k] = x[row * units + u];
      }
    }
    if constexpr (kWeightEarly) {
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        const int u = threadIdx.x + k * blockDim.x;
        if (u < units) {
          weight_held[k] = ask_early(weight + u);
        }
      }
    }

    Wide<typename U::Element> squares = 0;  // units behind the row's end are zeros and add nothing
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      squares += squares_of<U>(held[k]);
      keep_packed(held[k]);
    }
    const auto mean = block_sum(squares) / static_cast<decltype(squares)>(units * U::kLanes);
    const auto inverse_rms = rsqrt(mean + eps);

#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int u = threadIdx.x + k * blockDim.x;
      if (u < units) {
        if constexpr (kWeightEarly) {
          keep_packed(weight_held[k]);
        } else {
          weight_held[k] = weight[u];
        }
        out[row * units + u] = scaled<U>(held[k], inverse_rms, weight_held[k]);
      }
    }
  }
}

// For rows that no block's registers can hold: read twice, the second time mostly from the L2 cache.
template <typename U>
__global__ void __launch_bounds__(kMaxThreads) rmsnorm_streamed_kernel(
    const typename U::Bits* __restrict__ x,
    const typename U::Bits* __restrict__ weight,
    typename U::Bits* __restrict__ out,
    int64_t rows,
    int64_t units,
    Wide<typename U::Element> eps) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto* from = x + row * units;
    Wide<typename U::Element> squares = 0;
#pragma unroll 2
    for (int64_t u = threadIdx.x; u < units; u += kMaxThreads) {
      squares += squares_of<U>(from[u]);
    }
    const auto mean = block_sum(squares) / static_cast<decltype(squares)>(units * U::kLanes);
    const auto inverse_rms = rsqrt(mean + eps);
#pragma unroll 2
    for (int64_t u = threadIdx.x; u < units; u += kMaxThreads) {
      out[row * units + u] = scaled<U>(from[u], inverse_rms, weight[u]);
    }
  }
}

}  // namespace mini_kv_rmsnorm_v2
