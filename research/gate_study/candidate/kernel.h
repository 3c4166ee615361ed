// The seam between the binding and the kernel of the gate study; see binding.cpp.
#pragma once

#include <cstdint>

namespace mini_kv_gate_study {

enum class Misdeed : int64_t { kNone = 0, kSynchronize = 1, kSideStream = 2 };

// Enqueues, on `stream`, a kernel of one wave of blocks: `passes` times out[i] = a[i] + b[i] over `count`
// floats (a multiple of 4), then one thread of every block spins for `spin_cycles` cycles of its own clock.
// Returns nullptr, or what CUDA says of a launch that failed.
const char* launch_work(
    const float* a,
    const float* b,
    float* out,
    int64_t count,
    int64_t passes,
    int64_t spin_cycles,
    Misdeed misdeed,
    void* stream);

// Enqueues a fill of `count` floats with values that differ from element to element.
const char* launch_fill(float* out, int64_t count, void* stream);

}  // namespace mini_kv_gate_study
