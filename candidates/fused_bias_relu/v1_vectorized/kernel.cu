// Columns stay with their thread: a thread loads one pack of the bias, keeps it, and walks down the rows
// with it. That saves the division that finds an element's column, and reads the bias once a tile
// instead of once an element. Four rows are loaded before the first is used, so that four loads are
// under way at once.
#include "kernel.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_fused_bias_relu_v1 {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int kRowsPerThread = 4;
constexpr int kPackBytes = 16;        // the widest load there is
constexpr int64_t kMaxGridY = 65535;  // the hardware's limit on gridDim.y

template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T)) Pack {
  T lane[kWidth];
};

// Half-width elements are computed in float and rounded once.
__device__ float widen(float v) { return v; }
__device__ double widen(double v) { return v; }
__device__ float widen(__half v) { return __half2float(v); }
__device__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ void store(float* at, float v) { *at = v; }
__device__ void store(double* at, double v) { *at = v; }
__device__ void store(__half* at, float v) { *at = __float2half_rn(v); }
__device__ void store(__nv_bfloat16* at, float v) { *at = __float2bfloat16_rn(v); }

// Written as "negative becomes zero" and not as fmaxf(v, 0): fmaxf would turn NaN into zero, and a NaN
// that disappears inside a network is never found again.
template <typename T>
__device__ T relu(T v) {
  return v < T{0} ? T{0} : v;
}

// A block covers blockDim.x packs of columns and blockDim.y * kRowsPerThread rows. `packs` is the number
// of packs in a row. With kWidth 1 a pack is one element: the exact path for any size and alignment.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreadsPerBlock)
    bias_relu_tile_kernel(const T* x, const T* bias, T* out, int64_t rows, int64_t packs) {
  using P = Pack<T, kWidth>;
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= packs) {
    return;
  }
  const P bias_pack = reinterpret_cast<const P*>(bias)[column];
  const auto* x_packs = reinterpret_cast<const P*>(x) + column;
  auto* out_packs = reinterpret_cast<P*>(out) + column;

  const int64_t tile_rows = int64_t{blockDim.y} * kRowsPerThread;
  const int64_t step = tile_rows * gridDim.y;
  for (int64_t top = blockIdx.y * tile_rows + threadIdx.y; top < rows; top += step) {
    P held[kRowsPerThread];
#pragma unroll
    for (int k = 0; k < kRowsPerThread; ++k) {
      const int64_t row = top + int64_t{k} * blockDim.y;
      if (row < rows) {
        held[k] = x_packs[row * packs];
      }
    }
#pragma unroll
    for (int k = 0; k < kRowsPerThread; ++k) {
      const int64_t row = top + int64_t{k} * blockDim.y;
      if (row < rows) {
        P result;
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) {
          const auto v = widen(held[k].lane[lane]) + widen(bias_pack.lane[lane]);
          store(&result.lane[lane], relu(v));
        }
        out_packs[row * packs] = result;
      }
    }
  }
}

template <typename T, int kWidth>
void launch_tiles(const T* x, const T* bias, T* out, int64_t rows, int64_t hidden, cudaStream_t stream) {
  const int64_t packs = hidden / kWidth;
  // Narrow matrices trade columns for rows, so that a block's threads all have work.
  unsigned columns = 1;
  while (columns < kThreadsPerBlock && columns < packs) {
    columns *= 2;
  }
  const dim3 block(columns, kThreadsPerBlock / columns);
  const int64_t tile_rows = int64_t{block.y} * kRowsPerThread;
  const int64_t grid_x = (packs + columns - 1) / columns;
  const int64_t grid_y = std::min((rows + tile_rows - 1) / tile_rows, kMaxGridY);
  const dim3 grid(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
  bias_relu_tile_kernel<T, kWidth><<<grid, block, 0, stream>>>(x, bias, out, rows, packs);
}

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes == 0;
}

template <typename T>
const char* launch(
    const void* x, const void* bias, void* out, int64_t count, int64_t hidden, cudaStream_t stream) {
  constexpr int kWidth = kPackBytes / sizeof(T);
  const T* x_data = static_cast<const T*>(x);
  const T* bias_data = static_cast<const T*>(bias);
  T* out_data = static_cast<T*>(out);
  // A row whose length is no multiple of a pack would leave the next row off the 16-byte boundary.
  if (hidden % kWidth == 0 && is_aligned(x) && is_aligned(bias) && is_aligned(out)) {
    launch_tiles<T, kWidth>(x_data, bias_data, out_data, count / hidden, hidden, stream);
  } else {
    launch_tiles<T, 1>(x_data, bias_data, out_data, count / hidden, hidden, stream);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
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
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (element) {
    case Element::kFloat16:
      return launch<__half>(x, bias, out, count, hidden, cuda_stream);
    case Element::kBFloat16:
      return launch<__nv_bfloat16>(x, bias, out, count, hidden, cuda_stream);
    case Element::kFloat32:
      return launch<float>(x, bias, out, count, hidden, cuda_stream);
    case Element::kFloat64:
      return launch<double>(x, bias, out, count, hidden, cuda_stream);
  }
  return "unknown element type";
}

}  // namespace mini_kv_fused_bias_relu_v1
