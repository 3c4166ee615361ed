// The seam between the binding (C++, knows PyTorch) and the kernel (CUDA, does not): plain types only.
#pragma once

#include <cstdint>

namespace zoo {

// Enqueues the rows on `stream` (a cudaStream_t); returns nullptr, or what CUDA says of the launch.
const char* launch(
    const float* x, const float* weight, float* out, float* squares, int64_t rows, int64_t hidden, float eps, void* stream);

}  // namespace zoo
