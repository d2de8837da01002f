// While a FlushScope lives, its thread treats denormals as zero, in and out; afterwards as before. The kernels' results
// do not depend on it (tiering/arithmetic/optimizer.h); their speed does: a denormal costs an assist of 150 cycles.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace penstock::cpu_optim {

class FlushScope {
 public:
#if defined(__x86_64__)
  FlushScope() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushScope() { _mm_setcsr(before_); }

 private:
  static constexpr uint32_t kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const uint32_t before_;
#elif defined(__aarch64__)
  FlushScope() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | kFlushToZero));
  }
  ~FlushScope() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  static constexpr uint64_t kFlushToZero = uint64_t{1} << 24;
  uint64_t before_;
#else
  FlushScope() {}
  ~FlushScope() {}
#endif
 public:
  FlushScope(const FlushScope&) = delete;
  FlushScope& operator=(const FlushScope&) = delete;
};

}  // namespace penstock::cpu_optim
