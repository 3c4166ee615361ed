// The seam between the binding (C++, knows PyTorch) and the kernel (CUDA, does not): plain types only.
#pragma once

#include <cstdint>

namespace mini_kv_rmsnorm_v2 {

enum class Element { kFloat16, kBFloat16, kFloat32, kFloat64 };

// Enqueues, for each of `rows` rows of `hidden` elements, out = x / sqrt(mean(x^2) + eps) * weight on
// `stream` (a cudaStream_t). `rows` and `hidden` may be 0. Returns nullptr, or what CUDA says of a
// launch that failed. Never waits for the device.
const char* launch_rmsnorm(
    Element element,
    const void* x,
    const void* weight,
    void* out,
    int64_t rows,
    int64_t hidden,
    double eps,
    void* stream);

}  // namespace mini_kv_rmsnorm_v2
