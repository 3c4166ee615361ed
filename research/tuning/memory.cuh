// What all variants share: packs of 16 bytes, ways to load and store them, widening and rounding.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Ways to load. Named in tables as: plain, nc, nca (no L1), cs, ef (L2 evicts first), el (last).
enum Load { kPlain, kNc, kNca, kCs, kEvictFirst, kEvictLast };
// Ways to store: plain, cs (streaming), ef (L2 evicts first).
enum Store { kStorePlain, kStoreCs, kStoreEf };

__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

#define LOAD_ASM(text) \
  asm volatile(text " {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at))

template <int kLoad>
__device__ __forceinline__ uint4 load16(const uint4* at) {
  uint4 v;
  if constexpr (kLoad == kPlain) {
    v = *at;
  } else if constexpr (kLoad == kNc) {
    LOAD_ASM("ld.global.nc.v4.u32");
  } else if constexpr (kLoad == kNca) {
    LOAD_ASM("ld.global.nc.L1::no_allocate.v4.u32");
  } else if constexpr (kLoad == kCs) {
    LOAD_ASM("ld.global.cs.v4.u32");
  } else {
    const uint64_t policy = kLoad == kEvictFirst ? evict_first_policy() : evict_last_policy();
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at), "l"(policy));
  }
  return v;
}

#define STORE_ASM(text)                                                                                 \
  asm volatile(text " [%4], {%0,%1,%2,%3};" ::"r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(at) : "memor" \
                                                                                                "y")

template <int kStore>
__device__ __forceinline__ void store16(uint4* at, uint4 v) {
  if constexpr (kStore == kStorePlain) {
    *at = v;
  } else if constexpr (kStore == kStoreCs) {
    STORE_ASM("st.global.cs.v4.u32");
  } else {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%4], {%0,%1,%2,%3}, %5;" ::"r"(v.x),
                 "r"(v.y),
                 "r"(v.z),
                 "r"(v.w),
                 "l"(at),
                 "l"(evict_first_policy())
                 : "memory");
  }
}

// A pack as floats and back; kLanes elements in 16 bytes.
template <typename T>
struct Lanes;

template <>
struct Lanes<__half> {
  static constexpr int kLanes = 8;
  static __device__ __forceinline__ void widen(uint4 v, float (&f)[8]) {
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      f[2 * i] = two.x;
      f[2 * i + 1] = two.y;
    }
  }
  static __device__ __forceinline__ uint4 round(const float (&f)[8]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 two = __floats2half2_rn(f[2 * i], f[2 * i + 1]);
      words[i] = *reinterpret_cast<const unsigned*>(&two);
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

template <>
struct Lanes<__nv_bfloat16> {
  static constexpr int kLanes = 8;
  static __device__ __forceinline__ void widen(uint4 v, float (&f)[8]) {
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f[2 * i] = __uint_as_float(words[i] << 16);
      f[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  static __device__ __forceinline__ uint4 round(const float (&f)[8]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
      words[i] = *reinterpret_cast<const unsigned*>(&two);
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

template <>
struct Lanes<float> {
  static constexpr int kLanes = 4;
  static __device__ __forceinline__ void widen(uint4 v, float (&f)[4]) {
    f[0] = __uint_as_float(v.x);
    f[1] = __uint_as_float(v.y);
    f[2] = __uint_as_float(v.z);
    f[3] = __uint_as_float(v.w);
  }
  static __device__ __forceinline__ uint4 round(const float (&f)[4]) {
    return {__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]), __float_as_uint(f[3])};
  }
};

inline int sm_count() {
  static const int count = [] {
    int device = 0;
    int sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    return sms;
  }();
  return count;
}
