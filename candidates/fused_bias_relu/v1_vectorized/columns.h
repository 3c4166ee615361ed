// Which column an element of a dense matrix lies in, from its number alone. No CUDA in here: a test
// compiles it for the host.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MINI_KV_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MINI_KV_HOST_DEVICE inline
#endif

namespace mini_kv_fused_bias_relu_v1 {

// Division by a number known at launch, through the upper half of a product. For every n below 2^31 and a
// divisor of at least 2: with 2^bits >= divisor > 2^(bits - 1), the multiplier is 2^(31 + bits) / divisor,
// rounded up by less than 1, which adds less than 1 / divisor to the quotient: too little to reach the next
// whole number.
struct Divisor {
  unsigned value;
  unsigned multiplier;
  unsigned shift;

  explicit Divisor(unsigned divisor) : value(divisor) {
    unsigned bits = 1;
    while ((uint64_t{1} << bits) < divisor) {
      ++bits;
    }
    multiplier = static_cast<unsigned>(((uint64_t{1} << (31 + bits)) + divisor - 1) / divisor);
    shift = bits - 1;
  }
  MINI_KV_HOST_DEVICE unsigned remainder(unsigned n) const {
    const auto upper = static_cast<unsigned>(uint64_t{n} * multiplier >> 32);
    return n - (upper >> shift) * value;
  }
};
constexpr int64_t kMaxDividend = 2147483647;

// A column counted on from one in the row, by less than a row: behind the last comes the next row's first.
MINI_KV_HOST_DEVICE unsigned wrapped(unsigned column, unsigned hidden) {
  return column < hidden ? column : column - hidden;
}

}  // namespace mini_kv_fused_bias_relu_v1
