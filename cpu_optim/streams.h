// Writes past the caches: to where kernels may stream, and what ends it before another thread reads.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace penstock::cpu_optim {

constexpr uint64_t kStreamAlignmentBytes = 64;

inline uint64_t bytes_past_stream_alignment(const std::byte* target) {
  return reinterpret_cast<uintptr_t>(target) % kStreamAlignmentBytes;
}

inline bool may_stream_to(const std::byte* target) { return bytes_past_stream_alignment(target) == 0; }

inline void end_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace penstock::cpu_optim
