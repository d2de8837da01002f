// What lets one function be compiled for the host and for a GPU. Under an ordinary compiler these macros say nothing.
//
// The headers of this folder hold arithmetic that must give the same bits everywhere: plain functions of numbers, no
// memory, no state, each fused multiply-add written out, nothing for a compiler to contract.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define PENSTOCK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PENSTOCK_HOST_DEVICE inline
#endif

namespace penstock::arithmetic {

PENSTOCK_HOST_DEVICE uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

PENSTOCK_HOST_DEVICE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

}  // namespace penstock::arithmetic
