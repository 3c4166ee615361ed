// The product's own rmsnorm kernel in forms that it does not ship. In a unit of its own: the tuner uses its
// names too.
#pragma once

#include "../../candidates/rmsnorm/v2_vectorized/fitting.cuh"

// The product's kernel, by the template arguments that fitting.cuh would give it.
template <typename T, int kThreads, int kUnits, int kRows, bool kGivenUpFirst>
void launch_shipped(
    const void* x, const void* w, void* out, int64_t rows, int64_t hidden, double eps, void* stream) {
  const mini_kv_rmsnorm_v2::Call call{x, w, out, rows, hidden, eps, static_cast<cudaStream_t>(stream)};
  mini_kv_rmsnorm_v2::launch_rows<T, kThreads, kUnits, kRows, 1, kGivenUpFirst>(call);
}
