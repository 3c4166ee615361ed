// The seam between the binding (C++, knows PyTorch) and the kernel (CUDA, does not).
//
// Only plain types cross it. The .cu file therefore includes no PyTorch header and compiles in about a
// second; the .cpp file includes no CUDA header and builds on a machine that has none.
#pragma once

#include <cstdint>

namespace mini_kv_vector_add_v1 {

enum class Element { kFloat16, kBFloat16, kFloat32, kFloat64 };

// Enqueues out[i] = a[i] + b[i] for i in [0, count) on `stream` (a cudaStream_t). `count` may be 0.
// Returns nullptr, or what CUDA says of a launch that failed. Never waits for the device.
const char* launch_add(
    Element element, const void* a, const void* b, void* out, int64_t count, void* stream);

}  // namespace mini_kv_vector_add_v1
