// Which kernel takes which rows. Each element type is a translation unit of its own, so that they compile
// side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels.cuh"

namespace mini_kv_rmsnorm_v2 {

constexpr int64_t kMaxBlocks = 2147483647;  // the hardware's limit on gridDim.x

// Inputs of this size, about that of an L2 cache, are no longer a matter of latency. Rows then go through
// each block in larger groups.
constexpr int64_t kManyBytes = int64_t{64} << 20;

// A launch, its element type yet to be chosen.
struct Call {
  const void* x;
  const void* weight;
  void* out;
  int64_t rows;
  int64_t hidden;
  double eps;
  cudaStream_t stream;

  unsigned blocks() const { return static_cast<unsigned>(std::min(rows, kMaxBlocks)); }
};

template <typename T, int kThreads, int kUnits, int kRows, int kGroups = 1, bool kGivenUpFirst = false>
bool launch_rows(const Call& call) {
  constexpr int kBlockRows = kRows * kGroups;
  const auto blocks = static_cast<unsigned>((call.rows + kBlockRows - 1) / kBlockRows);
  rmsnorm_rows_kernel<T, kThreads, kUnits, kRows, kGroups, kGivenUpFirst>
      <<<blocks, dim3(kThreads, kGroups), 0, call.stream>>>(
          static_cast<const uint4*>(call.x),
          static_cast<const uint4*>(call.weight),
          static_cast<uint4*>(call.out),
          static_cast<int>(call.rows),
          static_cast<float>(call.eps),
          1.0f / static_cast<float>(call.hidden));
  return true;
}

// False where the device has not so much shared memory for a block. The permission to use more than 48 KiB
// is asked for at each launch: it is each device's own, and to note who gave it would take longer.
template <typename T, int kThreads, int kUnits, int kRows>
bool launch_staged(const Call& call) {
  constexpr int kBytes = kRows * kThreads * kUnits * kPackBytes;
  if (cudaFuncSetAttribute(
          rmsnorm_staged_kernel<T, kThreads, kUnits, kRows>,
          cudaFuncAttributeMaxDynamicSharedMemorySize,
          kBytes) != cudaSuccess) {
    cudaGetLastError();  // another kernel takes the rows, and its launch shall not be blamed for this
    return false;
  }
  const auto blocks = static_cast<unsigned>((call.rows + kRows - 1) / kRows);
  rmsnorm_staged_kernel<T, kThreads, kUnits, kRows><<<blocks, kThreads, kBytes, call.stream>>>(
      static_cast<const uint4*>(call.x),
      static_cast<const uint4*>(call.weight),
      static_cast<uint4*>(call.out),
      static_cast<int>(call.rows),
      static_cast<float>(call.eps),
      1.0f / static_cast<float>(call.hidden));
  return true;
}

// Launches the form that a row of `packs` units fills exactly; false if there is none.
//
// Short rows: a warp each, so that no barrier is needed; two rows a warp and four warps a block. Longer
// rows: 128 threads, of which more blocks fit on an SM than of 512, so that one block's barrier is
// hidden behind the others' loads; two rows a block, which share the weight, while two fit in the registers.
//
// 512 units, the row of 4096 half-width elements that models are made of, were tried in every form: one
// unit a thread, two rows behind a barrier, four once rows are many.
//
// 640 units are the longest row of which eight fit on an SM in registers, as four blocks of two: a
// thousand rows then run in one wave. Longer ones wait in shared memory, where again eight fit, or, from
// 1536 units on, four: threads of two units each, two rows a block. Once rows are many, waves no longer
// count and registers serve as well: 128 threads, or 512 where those cannot hold a row.
template <typename T>
bool launch_exact(const Call& call, int64_t packs) {
  if (call.rows > INT32_MAX / 2) {
    return false;  // row numbers are ints there
  }
  const bool many = call.rows * packs * kPackBytes >= kManyBytes;
  switch (packs) {
    case 32:
      return launch_rows<T, 32, 1, 2, 4>(call);
    case 64:
      return launch_rows<T, 32, 2, 2, 4>(call);
    case 96:
      return launch_rows<T, 32, 3, 2, 4>(call);
    case 128:
      return launch_rows<T, 32, 4, 2, 4>(call);
    case 256:
      return launch_rows<T, 128, 2, 2>(call);
    case 384:
      return launch_rows<T, 128, 3, 2>(call);
    case 512:
      return many ? launch_rows<T, 512, 1, 4>(call) : launch_rows<T, 512, 1, 2, 1, true>(call);
    case 640:
      return launch_rows<T, 160, 4, 2>(call);
    case 768:
      return many ? launch_rows<T, 128, 6, 1>(call) : launch_staged<T, 384, 2, 2>(call);
    case 896:
      return many ? launch_rows<T, 128, 7, 1>(call) : launch_staged<T, 448, 2, 2>(call);
    case 1024:
      return many ? launch_rows<T, 512, 2, 2>(call) : launch_staged<T, 512, 2, 2>(call);
    case 1536:
      return many ? launch_rows<T, 512, 3, 1>(call) : launch_staged<T, 768, 2, 2>(call);
    case 2048:
      return many ? launch_rows<T, 512, 4, 1>(call) : launch_staged<T, 1024, 2, 2>(call);
    case 4096:
      if constexpr (std::is_same_v<T, float>) {  // other types widen, which needs registers beyond these
        return !many && launch_staged<T, 1024, 4, 1>(call);
      }
      return false;
    default:
      return false;
  }
}

template <typename U, int kUnits>
void launch_held(const Call& call) {
  const int units = static_cast<int>(call.hidden / U::kLanes);
  const int warps = (units + kUnits * kWarpThreads - 1) / (kUnits * kWarpThreads);
  rmsnorm_held_kernel<U, kUnits><<<call.blocks(), warps * kWarpThreads, 0, call.stream>>>(
      static_cast<const typename U::Bits*>(call.x),
      static_cast<const typename U::Bits*>(call.weight),
      static_cast<typename U::Bits*>(call.out),
      call.rows,
      units,
      static_cast<Wide<typename U::Element>>(call.eps));
}

template <typename U>
void launch_streamed(const Call& call) {
  rmsnorm_streamed_kernel<U><<<call.blocks(), kMaxThreads, 0, call.stream>>>(
      static_cast<const typename U::Bits*>(call.x),
      static_cast<const typename U::Bits*>(call.weight),
      static_cast<typename U::Bits*>(call.out),
      call.rows,
      call.hidden / U::kLanes,
      static_cast<Wide<typename U::Element>>(call.eps));
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes == 0;
}

// Rows and hidden are at least 1.
template <typename T>
void launch_fitting(const Call& call) {
  constexpr int kLanes = Packed<T>::kLanes;
  // A row whose length is no multiple of a pack would leave the next row off the 16-byte boundary.
  if (call.hidden % kLanes != 0 || !is_aligned(call.x) || !is_aligned(call.weight) ||
      !is_aligned(call.out)) {
    if (call.hidden <= kMaxThreads * kMaxUnitsHeld) {
      return launch_held<Single<T>, kMaxUnitsHeld>(call);
    }
    return launch_streamed<Single<T>>(call);
  }
  const int64_t packs = call.hidden / kLanes;
  if constexpr (!std::is_same_v<T, double>) {  // gradcheck's type is not worth its compile time
    if (launch_exact<T>(call, packs)) {
      return;
    }
  }
  // Small rows spread over the lanes of a warp first; a block grows past 128 threads only when four
  // packs a thread are no longer enough.
  if (packs <= 128) {
    launch_held<Packed<T>, 1>(call);
  } else if (packs <= 256) {
    launch_held<Packed<T>, 2>(call);
  } else if (packs <= kMaxThreads * 4) {
    launch_held<Packed<T>, 4>(call);
  } else if (packs <= kMaxThreads * kMaxUnitsHeld) {
    launch_held<Packed<T>, kMaxUnitsHeld>(call);
  } else {
    launch_streamed<Packed<T>>(call);
  }
}

}  // namespace mini_kv_rmsnorm_v2
