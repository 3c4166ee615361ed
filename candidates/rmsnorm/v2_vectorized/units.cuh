// What a thread moves at once: sixteen bytes, the widest access there is, or one element where rows do not
// lie on 16-byte boundaries. A unit widens to float (double to double), where everything is computed, and
// is rounded once, when it is stored: a float16 sum of squares would already overflow at 65504.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace mini_kv_rmsnorm_v2 {

constexpr int kPackBytes = 16;

__device__ __forceinline__ float widen_one(float v) { return v; }
__device__ __forceinline__ double widen_one(double v) { return v; }
__device__ __forceinline__ float widen_one(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen_one(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ __forceinline__ void round_one(float v, float& to) { to = v; }
__device__ __forceinline__ void round_one(double v, double& to) { to = v; }
__device__ __forceinline__ void round_one(float v, __half& to) { to = __float2half_rn(v); }
__device__ __forceinline__ void round_one(float v, __nv_bfloat16& to) { to = __float2bfloat16_rn(v); }

template <typename T>
using Wide = decltype(widen_one(T{}));

// One element.
template <typename T>
struct Single {
  using Element = T;
  using Bits = T;
  static constexpr int kLanes = 1;
  static __device__ __forceinline__ void widen(Bits bits, Wide<T> (&lane)[1]) {
    lane[0] = widen_one(bits);
  }
  static __device__ __forceinline__ Bits round(const Wide<T> (&lane)[1]) {
    Bits bits;
    round_one(lane[0], bits);
    return bits;
  }
};

// Sixteen bytes. They are loaded and stored as one uint4 and taken apart in registers: a struct of
// half-width elements may be copied element by element instead, in 2-byte loads. float and double first.
template <typename T>
struct Packed {
  using Element = T;
  using Bits = uint4;
  static constexpr int kLanes = kPackBytes / sizeof(T);
  static __device__ __forceinline__ void widen(Bits bits, T (&lane)[kLanes]) {
    static_assert(sizeof(lane) == kPackBytes, "half-width types have their own");
    memcpy(lane, &bits, kPackBytes);
  }
  static __device__ __forceinline__ Bits round(const T (&lane)[kLanes]) {
    Bits bits;
    memcpy(&bits, lane, kPackBytes);
    return bits;
  }
};

// Two half-width elements share a word, and are converted two at a time.
template <>
struct Packed<__half> {
  using Element = __half;
  using Bits = uint4;
  static constexpr int kLanes = 8;
  static __device__ __forceinline__ void widen(Bits bits, float (&lane)[kLanes]) {
    __half2 two[4];
    memcpy(two, &bits, kPackBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 wide = __half22float2(two[i]);
      lane[2 * i] = wide.x;
      lane[2 * i + 1] = wide.y;
    }
  }
  static __device__ __forceinline__ Bits round(const float (&lane)[kLanes]) {
    __half2 two[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      two[i] = __floats2half2_rn(lane[2 * i], lane[2 * i + 1]);
    }
    Bits bits;
    memcpy(&bits, two, kPackBytes);
    return bits;
  }
};

template <>
struct Packed<__nv_bfloat16> {
  using Element = __nv_bfloat16;
  using Bits = uint4;
  static constexpr int kLanes = 8;
  // A bfloat16 is the upper half of the float of the same value: a shift or a mask widens it.
  static __device__ __forceinline__ void widen(Bits bits, float (&lane)[kLanes]) {
    const unsigned word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      lane[2 * i] = __uint_as_float(word[i] << 16);
      lane[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
  }
  static __device__ __forceinline__ Bits round(const float (&lane)[kLanes]) {
    __nv_bfloat162 two[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      two[i] = __floats2bfloat162_rn(lane[2 * i], lane[2 * i + 1]);
    }
    Bits bits;
    memcpy(&bits, two, kPackBytes);
    return bits;
  }
};

// Makes the compiler take sixteen bytes as new at this point. Without it, elements are widened to float
// early and kept so until the final product, in twice the registers of the bytes themselves, and kernels
// spill. Since it orders itself after ask_early(), that load also stays where it was written.
__device__ __forceinline__ void keep_packed(uint4& bits) {
  asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
}
template <typename Bits>
__device__ __forceinline__ void keep_packed(Bits&) {}

// Loads a unit of x, which is read once. With kGivenUpFirst the L2 cache is told so, and takes this line's
// place for the next one it needs; else it makes room by giving up lines of others, and where those were
// written and not yet stored, memory is busy with them first. Only where x is small beside the cache: long
// runs of such loads are slower than plain ones.
template <bool kGivenUpFirst>
__device__ __forceinline__ uint4 ask_once(const uint4* at) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kGivenUpFirst) {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    uint4 bits;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(at), "l"(policy));
    return bits;
  }
#endif
  return *at;
}

// Starts a copy of a unit of x, read once as with ask_once<true>, to shared memory. It passes no register: a
// thread may have as many under way as it likes. What it copied itself it may read after wait_for_copies().
__device__ __forceinline__ void start_copy_once(uint4* to, const uint4* from) {
#if __CUDA_ARCH__ >= 800
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  const auto shared_address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address),
               "l"(from),
               "l"(policy)
               : "memory");
#else
  *to = *from;
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Loads the weight, which nobody writes meanwhile, and does so here: the compiler would rather move a plain
// load down to its first use, behind the reduction, where its latency is no longer hidden.
__device__ __forceinline__ uint4 ask_early(const uint4* at) {
#ifdef __CUDA_ARCH__
  uint4 bits;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(at));
  return bits;
#else
  return *at;
#endif
}
// The same, and before the next barrier too: the assembler moves loads of constant memory across barriers
// where registers are short, but not this one.
__device__ __forceinline__ uint4 ask_before_barrier(const uint4* at) {
#ifdef __CUDA_ARCH__
  uint4 bits;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(at));
  return bits;
#else
  return *at;
#endif
}
template <typename Bits>
__device__ __forceinline__ Bits ask_early(const Bits* at) {
  return *at;
}

template <typename U>
__device__ __forceinline__ Wide<typename U::Element> squares_of(typename U::Bits bits) {
  using W = Wide<typename U::Element>;
  W lane[U::kLanes];
  U::widen(bits, lane);
  W sum[2] = {0, 0};  // two chains of additions are half as long as one
#pragma unroll
  for (int i = 0; i < U::kLanes; ++i) {
    sum[i % 2] += lane[i] * lane[i];
  }
  return sum[0] + sum[1];
}

template <typename U>
__device__ __forceinline__ typename U::Bits scaled(
    typename U::Bits bits, Wide<typename U::Element> inverse_rms, typename U::Bits weight) {
  using W = Wide<typename U::Element>;
  W lane[U::kLanes];
  W factor[U::kLanes];
  U::widen(bits, lane);
  U::widen(weight, factor);
#pragma unroll
  for (int i = 0; i < U::kLanes; ++i) {
    lane[i] = lane[i] * inverse_rms * factor[i];
  }
  return U::round(lane);
}

}  // namespace mini_kv_rmsnorm_v2
