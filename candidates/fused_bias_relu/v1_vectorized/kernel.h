// The seam between the binding (C++, knows PyTorch) and the kernel (CUDA, does not): plain types only.
#pragma once

#include <cstdint>

namespace mini_kv_fused_bias_relu_v1 {

enum class Element { kFloat16, kBFloat16, kFloat32, kFloat64 };

// Enqueues out[i] = relu(x[i] + bias[i % hidden]) for i in [0, count) on `stream` (a cudaStream_t).
// `count` may be 0 and is a multiple of `hidden`. Returns nullptr, or what CUDA says of a launch that
// failed. Never waits for the device.
const char* launch_bias_relu(
    Element element,
    const void* x,
    const void* bias,
    void* out,
    int64_t count,
    int64_t hidden,
    void* stream);

}  // namespace mini_kv_fused_bias_relu_v1
