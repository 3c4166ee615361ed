// The matrix is one run of 16-byte packs, so that threads walk memory in order whatever the shape. A pack's
// column, where its bias lies, is the remainder of its number by the packs in a row, found with one
// multiplication; the bias itself comes from cache.
//
// Where a row is no whole number of packs, they begin at any column, and some end in the next row; the
// bias of such packs is cut out of the two packs of the bias that it lies in, x and the result are not.
//
// A thread asks for all its packs before it uses the first. How many those are depends on the size: two
// where these bring the whole matrix under way at once and one would not; else one.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "columns.h"

namespace mini_kv_fused_bias_relu_v1 {
namespace {

constexpr int kFlatThreads = 128;      // a block's, where rows are whole packs
constexpr int kWrappedThreads = 512;   // where packs end in the next row
constexpr int kThreadsPerBlock = 256;  // where elements are taken one by one
constexpr int kRowsPerThread = 4;      // where elements are taken one by one
constexpr int kPackBytes = 16;         // the widest load there is
constexpr int64_t kMaxGridY = 65535;   // the hardware's limit on gridDim.y

// From this size on, beyond an L2 cache, requests are many whatever a thread does, and the plainest order
// of them is the fastest one (scripts/tune tries the others): one pack a thread.
constexpr int64_t kLargeBytes = int64_t{64} << 20;

// Elements alone are computed in float and rounded once.
__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ double widen(double v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ __forceinline__ void store(float* at, float v) { *at = v; }
__device__ __forceinline__ void store(double* at, double v) { *at = v; }
__device__ __forceinline__ void store(__half* at, float v) { *at = __float2half_rn(v); }
__device__ __forceinline__ void store(__nv_bfloat16* at, float v) { *at = __float2bfloat16_rn(v); }

// Written as "negative becomes zero" and not as a maximum: fmaxf would turn NaN into zero, and a NaN that
// disappears inside a network is never found again.
template <typename T>
__device__ __forceinline__ T relu(T v) {
  return v < T{0} ? T{0} : v;
}

__device__ __forceinline__ float relu_of_sum(float a, float b) { return relu(a + b); }
__device__ __forceinline__ double relu_of_sum(double a, double b) { return relu(a + b); }

// In a pack, half-width elements go two at a time. Their sum is rounded once and correctly, to what float
// arithmetic rounds to; of the maxima this is the one that keeps NaN.
__device__ __forceinline__ __half2 relu_of_sum(__half2 a, __half2 b) {
  return __hmax2_nan(__hadd2(a, b), __float2half2_rn(0.0f));
}
__device__ __forceinline__ __nv_bfloat162 relu_of_sum(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hmax2_nan(__hadd2(a, b), __float2bfloat162_rn(0.0f));
}

template <typename T>
struct Lane {
  using Type = T;
};
template <>
struct Lane<__half> {
  using Type = __half2;
};
template <>
struct Lane<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};

template <typename T>
__device__ __forceinline__ uint4 relu_of_packs(uint4 x, uint4 bias) {
  using L = typename Lane<T>::Type;
  constexpr int kLanes = kPackBytes / sizeof(L);
  L from_x[kLanes];
  L from_bias[kLanes];
  memcpy(from_x, &x, kPackBytes);
  memcpy(from_bias, &bias, kPackBytes);
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    from_x[lane] = relu_of_sum(from_x[lane], from_bias[lane]);
  }
  memcpy(&x, from_x, kPackBytes);
  return x;
}

// x is read once. With kOnce no copy of it stays in the L1 cache, where nobody will look for it: shorter
// where a matrix needs several waves of blocks and yet fits into an L2 cache.
template <bool kOnce>
__device__ __forceinline__ uint4 load(const uint4* at) {
#ifdef __CUDA_ARCH__
  if constexpr (kOnce) {
    uint4 pack;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pack.x), "=r"(pack.y), "=r"(pack.z), "=r"(pack.w)
                 : "l"(at));
    return pack;
  }
#endif
  return *at;
}

// `count` packs in all, at most kMaxDividend.
template <typename T, int kPacks, bool kOnce>
__global__ void __launch_bounds__(kFlatThreads) bias_relu_flat_kernel(
    const uint4* __restrict__ x,
    const uint4* __restrict__ bias,
    uint4* __restrict__ out,
    unsigned count,
    Divisor packs_a_row) {
  const unsigned first = blockIdx.x * (kFlatThreads * kPacks) + threadIdx.x;
  uint4 held[kPacks];
  uint4 bias_held[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kFlatThreads;
    if (p < count) {
      held[k] = load<kOnce>(x + p);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kFlatThreads;
    if (p < count) {
      bias_held[k] = bias[packs_a_row.remainder(p)];
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kFlatThreads;
    if (p < count) {
      out[p] = relu_of_packs<T>(held[k], bias_held[k]);
    }
  }
}

// The sixteen bytes that begin `bytes` bytes, fewer than a pack, into two neighbouring packs: by words first,
// through selections, since an array that is indexed would leave the registers.
__device__ __forceinline__ uint4 cut_out(uint4 low, uint4 high, unsigned bytes) {
  unsigned word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    word[i] = bytes & 8 ? word[i + 2] : word[i];
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    word[i] = bytes & 4 ? word[i + 1] : word[i];
  }
  const unsigned bits = bytes % 4 * 8;
  return {
      __funnelshift_r(word[0], word[1], bits),
      __funnelshift_r(word[1], word[2], bits),
      __funnelshift_r(word[2], word[3], bits),
      __funnelshift_r(word[3], word[4], bits)};
}

// The bias of a pack whose first element lies in `column`. Two wide loads and shifts, where the first
// `in_packs` elements of the bias may be loaded so and hold it all; else, in the last packs of a row and
// the one in which it ends, element by element.
template <typename T>
__device__ __forceinline__ uint4
bias_from(const T* __restrict__ bias, unsigned column, unsigned hidden, unsigned in_packs) {
  constexpr unsigned kLanes = kPackBytes / sizeof(T);
  const unsigned within = column % kLanes;
  const unsigned begin = column - within;
  if (begin + 2 * kLanes <= in_packs) {
    const auto* packs = reinterpret_cast<const uint4*>(bias + begin);
    return cut_out(packs[0], packs[1], within * sizeof(T));
  }
  T lane[kLanes];
#pragma unroll
  for (unsigned i = 0; i < kLanes; ++i) {
    lane[i] = bias[wrapped(column + i, hidden)];
  }
  uint4 pack;
  memcpy(&pack, lane, kPackBytes);
  return pack;
}

// `packs` whole packs, and `rest` elements behind the last, fewer than a pack: at most kMaxDividend
// elements together, in rows of at least a pack. `in_packs`: as bias_from() says.
template <typename T, int kPacks, bool kOnce>
__global__ void __launch_bounds__(kWrappedThreads) bias_relu_wrapped_kernel(
    const uint4* __restrict__ x,
    const T* __restrict__ bias,
    uint4* __restrict__ out,
    unsigned packs,
    unsigned rest,
    unsigned in_packs,
    Divisor hidden) {
  constexpr unsigned kLanes = kPackBytes / sizeof(T);
  const unsigned first = blockIdx.x * (kWrappedThreads * kPacks) + threadIdx.x;
  uint4 held[kPacks];
  uint4 bias_held[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kWrappedThreads;
    if (p < packs) {
      held[k] = load<kOnce>(x + p);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kWrappedThreads;
    if (p < packs) {
      bias_held[k] = bias_from(bias, hidden.remainder(p * kLanes), hidden.value, in_packs);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const unsigned p = first + k * kWrappedThreads;
    if (p < packs) {
      out[p] = relu_of_packs<T>(held[k], bias_held[k]);
    }
  }
  if (first < rest) {
    const unsigned n = packs * kLanes + first;
    const T element = reinterpret_cast<const T*>(x)[n];
    store(reinterpret_cast<T*>(out) + n, relu(widen(element) + widen(bias[hidden.remainder(n)])));
  }
}

// An element at a time, for any size and alignment. A block covers blockDim.x columns and walks down the
// rows; a thread stays in its column, keeps its element of the bias, and asks for kRowsPerThread rows ahead.
template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock) bias_relu_elements_kernel(
    const T* __restrict__ x,
    const T* __restrict__ bias,
    T* __restrict__ out,
    int64_t rows,
    int64_t hidden) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= hidden) {
    return;
  }
  const auto b = widen(bias[column]);
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
  for (int64_t top = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; top < rows;
       top += step * kRowsPerThread) {
    T held[kRowsPerThread];
#pragma unroll
    for (int k = 0; k < kRowsPerThread; ++k) {
      if (top + k * step < rows) {
        held[k] = x[(top + k * step) * hidden + column];
      }
    }
#pragma unroll
    for (int k = 0; k < kRowsPerThread; ++k) {
      if (top + k * step < rows) {
        store(out + (top + k * step) * hidden + column, relu(widen(held[k]) + b));
      }
    }
  }
}

struct Call {
  const void* x;
  const void* bias;
  void* out;
  int64_t count;
  int64_t hidden;
  cudaStream_t stream;
};

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes == 0;
}

// Whole rows of packs, which the bias must be aligned for, or packs that begin anywhere in a row.
template <typename T, int kPacks, bool kOnce>
void launch_packs(const Call& call, bool whole_rows) {
  constexpr int64_t kLanes = kPackBytes / sizeof(T);
  const auto* x = static_cast<const uint4*>(call.x);
  auto* out = static_cast<uint4*>(call.out);
  const auto packs = static_cast<unsigned>(call.count / kLanes);
  const int64_t block_packs = (whole_rows ? kFlatThreads : kWrappedThreads) * kPacks;
  const auto blocks = static_cast<unsigned>((packs + block_packs - 1) / block_packs);
  if (whole_rows) {
    const auto* bias = static_cast<const uint4*>(call.bias);
    const Divisor packs_a_row(static_cast<unsigned>(call.hidden / kLanes));
    bias_relu_flat_kernel<T, kPacks, kOnce>
        <<<blocks, kFlatThreads, 0, call.stream>>>(x, bias, out, packs, packs_a_row);
  } else {
    const auto* bias = static_cast<const T*>(call.bias);
    const auto rest = static_cast<unsigned>(call.count % kLanes);
    const Divisor hidden(static_cast<unsigned>(call.hidden));
    const unsigned in_packs = is_aligned(bias) ? hidden.value : 0;
    bias_relu_wrapped_kernel<T, kPacks, kOnce>
        <<<blocks, kWrappedThreads, 0, call.stream>>>(x, bias, out, packs, rest, in_packs, hidden);
  }
}

template <typename T>
void launch_elements(const Call& call) {
  // Narrow matrices trade columns for rows, so that a block's threads all have work.
  unsigned columns = 1;
  while (columns < kThreadsPerBlock && columns < call.hidden) {
    columns *= 2;
  }
  const dim3 block(columns, kThreadsPerBlock / columns);
  const int64_t rows = call.count / call.hidden;
  const int64_t grid_x = (call.hidden + columns - 1) / columns;
  const int64_t tile_rows = int64_t{block.y} * kRowsPerThread;
  const int64_t grid_y = std::min((rows + tile_rows - 1) / tile_rows, kMaxGridY);
  const dim3 grid(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
  bias_relu_elements_kernel<T><<<grid, block, 0, call.stream>>>(
      static_cast<const T*>(call.x),
      static_cast<const T*>(call.bias),
      static_cast<T*>(call.out),
      rows,
      call.hidden);
}

// How many threads the current device runs at once; 0 if it does not say.
int64_t threads_at_once() {
  int device = 0;
  int sms = 0;
  int threads_an_sm = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&threads_an_sm, cudaDevAttrMaxThreadsPerMultiProcessor, device) !=
          cudaSuccess) {
    return 0;
  }
  return int64_t{sms} * threads_an_sm;
}

template <typename T>
void launch_fitting(const Call& call) {
  constexpr int64_t kLanes = kPackBytes / sizeof(T);
  const int64_t packs = call.count / kLanes;
  const bool whole_rows =
      call.hidden % kLanes == 0 && call.hidden >= 2 * kLanes && is_aligned(call.bias);
  // Packs are counted where rows are whole, elements where they are not.
  const int64_t largest = whole_rows ? packs : call.count;
  if (call.hidden < kLanes || largest > kMaxDividend || !is_aligned(call.x) || !is_aligned(call.out)) {
    return launch_elements<T>(call);
  }
  const int64_t at_once = threads_at_once();
  if (packs <= at_once || packs * kPackBytes >= kLargeBytes) {
    launch_packs<T, 1, false>(call, whole_rows);
  } else if (packs <= 2 * at_once) {
    launch_packs<T, 2, false>(call, whole_rows);
  } else {
    launch_packs<T, 1, true>(call, whole_rows);
  }
}

}  // namespace

const char* launch_bias_relu(
    Element element,
    const void* x,
    const void* bias,
    void* out,
    int64_t count,
    int64_t hidden,
    void* stream) {
  if (count == 0) {
    return nullptr;  // a grid of no blocks is a launch error
  }
  const Call call{x, bias, out, count, hidden, static_cast<cudaStream_t>(stream)};
  switch (element) {
    case Element::kFloat16:
      launch_fitting<__half>(call);
      break;
    case Element::kBFloat16:
      launch_fitting<__nv_bfloat16>(call);
      break;
    case Element::kFloat32:
      launch_fitting<float>(call);
      break;
    case Element::kFloat64:
      launch_fitting<double>(call);
      break;
    default:
      return "unknown element type";
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace mini_kv_fused_bias_relu_v1
