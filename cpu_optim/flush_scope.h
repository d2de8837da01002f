// While a FlushScope lives, its thread computes in one floating-point mode, whatever the caller's mode is: rounding to
// nearest, denormal inputs and results as zero, no traps. A DenormalScope is the same with denormals as they are. The
// destructor restores the caller's mode and exception flags.
//
// The kernels' results do not depend on denormals (tiering/arithmetic/optimizer.h), but their speed does: each costs an
// assist of 150 cycles.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace penstock::cpu_optim {

enum class Denormals : uint8_t { flushed, kept };

template <Denormals kDenormals>
class FloatModeScope {
 public:
  FloatModeScope() : before_(control()) { set_control(kDenormals == Denormals::flushed ? kFlushing : kKeeping); }
  ~FloatModeScope() { set_control(before_); }
  FloatModeScope(const FloatModeScope&) = delete;
  FloatModeScope& operator=(const FloatModeScope&) = delete;

 private:
#if defined(__x86_64__)
  using Control = uint32_t;
  // Flush to zero, all exceptions masked, denormals are zero; the rounding bits, 0x6000, say nearest.
  static constexpr Control kKeeping = 0x1f80, kFlushing = 0x8000 | kKeeping | 0x0040;
  static Control control() { return _mm_getcsr(); }
  static void write(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kKeeping = 0, kFlushing = Control{1} << 24;  // FZ alone: nearest, no traps
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Control value) { asm volatile("msr fpcr, %0" ::"r"(value)); }
#else
  using Control = uint32_t;
  static constexpr Control kKeeping = 0, kFlushing = 0;
  static Control control() { return 0; }
  static void write(Control) {}
#endif
  // The fences keep the compiler from moving computations out of the scope.
  static void set_control(Control value) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    write(value);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  const Control before_;
};

using FlushScope = FloatModeScope<Denormals::flushed>;
using DenormalScope = FloatModeScope<Denormals::kept>;

}  // namespace penstock::cpu_optim
