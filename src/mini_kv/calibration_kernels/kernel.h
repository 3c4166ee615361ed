// The seam between the binding and the calibration's kernel; see binding.cpp.
#pragma once

#include <cstdint>

namespace mini_kv_calibration {

constexpr int64_t kStamps = 5;  // values a call leaves
constexpr int64_t kCalls = 64;  // calls the log holds

constexpr int kWideThreads = 256;
constexpr int64_t kMaxBlocks = 16384;
constexpr int64_t kWideStamps = 1 + 2 * kMaxBlocks;  // values a call of many blocks leaves
constexpr int64_t kWideCalls = 32;                   // calls their log holds: those that a witness watches

// Enqueues one thread that spins for `amount` cycles of its multiprocessor's clock and writes
// {global timer at the start, at the end, clock at the start, at the end, `number`} to `stamps`.
// Returns nullptr, or what CUDA says of a launch that failed.
const char* launch_spin(int64_t* stamps, int64_t amount, int64_t number, void* stream);

// Enqueues `blocks` blocks of kWideThreads threads, at most kMaxBlocks, each of which spins for `amount`
// cycles, and writes {`number`, every block's start, every block's end} to `stamps`, by the global timer.
const char* launch_wide(int64_t* stamps, int64_t amount, int64_t blocks, int64_t number, void* stream);

// The same with a copy in the spin's place: each thread copies the element of its number.
const char* launch_copy(
    int64_t* stamps, const int16_t* from, int16_t* to, int64_t blocks, int64_t number, void* stream);

// Enqueues one thread that writes the next `count` distinct readings of the global timer to `stamps`.
const char* launch_steps(int64_t* stamps, int64_t count, void* stream);

}  // namespace mini_kv_calibration
