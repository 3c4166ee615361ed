// One block normalises one row and reads it from memory once: the row waits in registers, in 16-byte
// packs, while the sum of squares is folded through warp shuffles. The norm then costs what a copy of
// the row costs, which is the floor for this operator.
//
// Block sizes follow the row. Four packs a thread and 128 threads hold 4096 float16 elements; eight such
// blocks fit on an SM with 64 registers a thread, so that 1024 rows are in flight on 132 SMs at once and
// no second, nearly empty wave follows the first.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_rmsnorm_v2 {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / kWarpThreads;
constexpr int kPackBytes = 16;              // the widest load there is
constexpr int kMaxPacksHeld = 8;            // a thread's packs; more would spill out of the registers
constexpr int64_t kMaxBlocks = 2147483647;  // the hardware's limit on gridDim.x
constexpr unsigned kAllLanes = 0xffffffffu;

template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T)) Pack {
  T lane[kWidth];
};

// Everything is computed in float (double for double) and rounded once, when it is stored. A float16
// sum of squares would already overflow at 65504.
__device__ float widen(float v) { return v; }
__device__ double widen(double v) { return v; }
__device__ float widen(__half v) { return __half2float(v); }
__device__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ void store(float* at, float v) { *at = v; }
__device__ void store(double* at, double v) { *at = v; }
__device__ void store(__half* at, float v) { *at = __float2half_rn(v); }
__device__ void store(__nv_bfloat16* at, float v) { *at = __float2bfloat16_rn(v); }

template <typename T>
using Wide = decltype(widen(T{}));

template <typename T, int kWidth>
__device__ Wide<T> squares_of(const Pack<T, kWidth>& pack) {
  Wide<T> sum = 0;
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    const Wide<T> v = widen(pack.lane[lane]);
    sum += v * v;
  }
  return sum;
}

template <typename T, int kWidth>
__device__ Pack<T, kWidth> scaled(
    const Pack<T, kWidth>& pack, Wide<T> inverse_rms, const Pack<T, kWidth>& weight) {
  Pack<T, kWidth> result;
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    store(&result.lane[lane], widen(pack.lane[lane]) * inverse_rms * widen(weight.lane[lane]));
  }
  return result;
}

// Makes the compiler take a pack's bits as new at this point. Without it, elements are widened to float
// early and kept so until the final product, in twice the registers of the pack itself, and the bfloat16
// kernels spill.
template <typename T, int kWidth>
__device__ void keep_packed(Pack<T, kWidth>& pack) {
  if constexpr (sizeof(pack) == kPackBytes) {
    auto* words = reinterpret_cast<unsigned*>(&pack);
    asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
  }
}

// Returns the block's sum of `value` to every thread; the block is a whole number of warps. First each
// warp adds within itself, register to register; then the few warp sums meet in shared memory. The order
// is fixed, so results repeat bit for bit.
template <typename W>
__device__ W block_sum(W value) {
#pragma unroll
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  const int warps = blockDim.x / kWarpThreads;
  if (warps == 1) {
    return value;
  }
  __shared__ W warp_sums[kMaxWarps];
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

// The row stays in registers: kPacks packs a thread, `packs` in the row, packs <= kPacks * blockDim.x.
template <typename T, int kWidth, int kPacks>
__global__ void __launch_bounds__(kMaxThreads)
    rmsnorm_held_kernel(const T* x, const T* weight, T* out, int64_t rows, int packs, Wide<T> eps) {
  using P = Pack<T, kWidth>;
  // The weight is asked for together with the row, so that its way from the L2 cache overlaps the
  // reduction. At eight packs there is no room for both, and it is read afterwards.
  constexpr bool kWeightAhead = kPacks < kMaxPacksHeld;
  const auto* weight_packs = reinterpret_cast<const P*>(weight);

  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto* from = reinterpret_cast<const P*>(x) + row * packs;
    auto* to = reinterpret_cast<P*>(out) + row * packs;

    P held[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int p = threadIdx.x + k * blockDim.x;
      if (p < packs) {
        held[k] = from[p];
      }
    }
    P weight_held[kWeightAhead ? kPacks : 1];
    if constexpr (kWeightAhead) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const int p = threadIdx.x + k * blockDim.x;
        if (p < packs) {
          weight_held[k] = weight_packs[p];
        }
      }
    }

    Wide<T> squares = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (threadIdx.x + k * blockDim.x < packs) {
        squares += squares_of(held[k]);
        keep_packed(held[k]);
      }
    }
    const Wide<T> mean = block_sum(squares) / static_cast<Wide<T>>(packs * kWidth);
    const Wide<T> inverse_rms = rsqrt(mean + eps);

#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int p = threadIdx.x + k * blockDim.x;
      if (p < packs) {
        if constexpr (kWeightAhead) {
          keep_packed(weight_held[k]);
          to[p] = scaled(held[k], inverse_rms, weight_held[k]);
        } else {
          to[p] = scaled(held[k], inverse_rms, weight_packs[p]);
        }
      }
    }
  }
}

// For rows that no block's registers can hold: read twice, the second time mostly from the L2 cache.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMaxThreads) rmsnorm_streamed_kernel(
    const T* x, const T* weight, T* out, int64_t rows, int64_t packs, Wide<T> eps) {
  using P = Pack<T, kWidth>;
  const auto* weight_packs = reinterpret_cast<const P*>(weight);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto* from = reinterpret_cast<const P*>(x) + row * packs;
    auto* to = reinterpret_cast<P*>(out) + row * packs;

    Wide<T> squares = 0;
    for (int64_t p = threadIdx.x; p < packs; p += blockDim.x) {
      squares += squares_of(from[p]);
    }
    const Wide<T> mean = block_sum(squares) / static_cast<Wide<T>>(packs * kWidth);
    const Wide<T> inverse_rms = rsqrt(mean + eps);

    for (int64_t p = threadIdx.x; p < packs; p += blockDim.x) {
      to[p] = scaled(from[p], inverse_rms, weight_packs[p]);
    }
  }
}

// The arguments of a launch, once their type is known.
template <typename T>
struct Call {
  const T* x;
  const T* weight;
  T* out;
  int64_t rows;
  int64_t hidden;
  Wide<T> eps;
  cudaStream_t stream;

  unsigned blocks() const { return static_cast<unsigned>(std::min(rows, kMaxBlocks)); }
};

template <int kWidth, int kPacks, typename T>
void launch_held(const Call<T>& call) {
  const int packs = static_cast<int>(call.hidden / kWidth);
  const int warps = (packs + kPacks * kWarpThreads - 1) / (kPacks * kWarpThreads);
  rmsnorm_held_kernel<T, kWidth, kPacks><<<call.blocks(), warps * kWarpThreads, 0, call.stream>>>(
      call.x, call.weight, call.out, call.rows, packs, call.eps);
}

template <int kWidth, typename T>
void launch_streamed(const Call<T>& call) {
  rmsnorm_streamed_kernel<T, kWidth><<<call.blocks(), kMaxThreads, 0, call.stream>>>(
      call.x, call.weight, call.out, call.rows, call.hidden / kWidth, call.eps);
}

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes == 0;
}

template <typename T>
void launch_widest(const Call<T>& call) {
  constexpr int kWidth = kPackBytes / sizeof(T);
  // A row whose length is no multiple of a pack would leave the next row off the 16-byte boundary.
  if (call.hidden % kWidth != 0 || !is_aligned(call.x) || !is_aligned(call.weight) ||
      !is_aligned(call.out)) {
    if (call.hidden <= kMaxThreads * kMaxPacksHeld) {
      return launch_held<1, kMaxPacksHeld>(call);
    }
    return launch_streamed<1>(call);
  }
  // Small rows spread over the lanes of a warp first; a block grows past 128 threads only when four
  // packs a thread are no longer enough.
  const int64_t packs = call.hidden / kWidth;
  if (packs <= 128) {
    launch_held<kWidth, 1>(call);
  } else if (packs <= 256) {
    launch_held<kWidth, 2>(call);
  } else if (packs <= kMaxThreads * 4) {
    launch_held<kWidth, 4>(call);
  } else if (packs <= kMaxThreads * kMaxPacksHeld) {
    launch_held<kWidth, kMaxPacksHeld>(call);
  } else {
    launch_streamed<kWidth>(call);
  }
}

template <typename T>
const char* launch(
    const void* x,
    const void* weight,
    void* out,
    int64_t rows,
    int64_t hidden,
    double eps,
    cudaStream_t stream) {
  launch_widest(
      Call<T>{
          static_cast<const T*>(x),
          static_cast<const T*>(weight),
          static_cast<T*>(out),
          rows,
          hidden,
          static_cast<Wide<T>>(eps),
          stream});
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_rmsnorm(
    Element element,
    const void* x,
    const void* weight,
    void* out,
    int64_t rows,
    int64_t hidden,
    double eps,
    void* stream) {
  if (rows == 0 || hidden == 0) {
    return nullptr;  // a grid of no blocks is a launch error
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (element) {
    case Element::kFloat16:
      return launch<__half>(x, weight, out, rows, hidden, eps, cuda_stream);
    case Element::kBFloat16:
      return launch<__nv_bfloat16>(x, weight, out, rows, hidden, eps, cuda_stream);
    case Element::kFloat32:
      return launch<float>(x, weight, out, rows, hidden, eps, cuda_stream);
    case Element::kFloat64:
      return launch<double>(x, weight, out, rows, hidden, eps, cuda_stream);
  }
  return "unknown element type";
}

}  // namespace mini_kv_rmsnorm_v2
