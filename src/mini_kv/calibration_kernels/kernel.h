// The seam between the binding and the calibration's kernel; see binding.cpp.
#pragma once

#include <cstdint>

namespace mini_kv_calibration {

constexpr int64_t kStamps = 5;  // values a call leaves
constexpr int64_t kCalls = 256;  // calls the log holds: those of a witness, and of the batch that fetches it
constexpr int kWideThreads = 256;

// Enqueues one thread that spins for `amount` cycles of its multiprocessor's clock and writes
// {global timer at the start, at the end, clock at the start, at the end, `number`} to `stamps`.
// Returns nullptr, or what CUDA says of a launch that failed.
const char* launch_spin(int64_t* stamps, int64_t amount, int64_t number, void* stream);

// Enqueues `blocks` blocks of kWideThreads threads, each of which spins for `amount` cycles, and writes
// {the first block's start, the last block's end, 0, 0, `number`} to `stamps`, by the global timer.
// `next` is where the next call will write: its start is set so that any reading is earlier.
const char* launch_wide(int64_t* stamps, int64_t* next, int64_t amount, int64_t blocks, int64_t number,
                        void* stream);

// Enqueues one thread that writes the next `count` distinct readings of the global timer to `stamps`.
const char* launch_steps(int64_t* stamps, int64_t count, void* stream);

}  // namespace mini_kv_calibration
