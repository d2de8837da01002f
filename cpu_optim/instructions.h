// The instruction sets that a source file is compiled for, as the compiler's own macros say. The processor is checked
// for exactly these, so compiler flags and check cannot differ. For this folder alone.
#pragma once

#include <cstdint>

namespace penstock::cpu_optim {

// Beyond what every processor of the architecture has. Bits of a mask.
enum Instructions : uint32_t {
  kSse3 = 1u << 0,
  kSsse3 = 1u << 1,
  kSse41 = 1u << 2,
  kSse42 = 1u << 3,
  kPopcnt = 1u << 4,
  kAvx = 1u << 5,
  kF16c = 1u << 6,
  kFma = 1u << 7,
  kAvx2 = 1u << 8,
  kAvx512F = 1u << 9,
  kAvx512Dq = 1u << 10,
  kAvx512Cd = 1u << 11,
  kAvx512Bw = 1u << 12,
  kAvx512Vl = 1u << 13,
};

namespace {  // one value for each source file

[[maybe_unused]] constexpr uint32_t kCompiledFor = 0
#if defined(__x86_64__)
#if defined(__SSE3__)
                                                   | kSse3
#endif
#if defined(__SSSE3__)
                                                   | kSsse3
#endif
#if defined(__SSE4_1__)
                                                   | kSse41
#endif
#if defined(__SSE4_2__)
                                                   | kSse42
#endif
#if defined(__POPCNT__)
                                                   | kPopcnt
#endif
#if defined(__AVX__)
                                                   | kAvx
#endif
#if defined(__F16C__)
                                                   | kF16c
#endif
#if defined(__FMA__)
                                                   | kFma
#endif
#if defined(__AVX2__)
                                                   | kAvx2
#endif
#if defined(__AVX512F__)
                                                   | kAvx512F
#endif
#if defined(__AVX512DQ__)
                                                   | kAvx512Dq
#endif
#if defined(__AVX512CD__)
                                                   | kAvx512Cd
#endif
#if defined(__AVX512BW__)
                                                   | kAvx512Bw
#endif
#if defined(__AVX512VL__)
                                                   | kAvx512Vl
#endif
#endif
    ;

}  // namespace

// What CPUID says about an x86-64 processor.
struct ProcessorWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t xcr0 = 0;  // which registers the operating system saves; zero if it does not say
};
ProcessorWords this_processor();

// The instructions that may be used: no AVX unless the operating system saves its registers, and no AVX-512 unless it
// saves masks and upper halves.
uint32_t instructions_of(const ProcessorWords& words);

}  // namespace penstock::cpu_optim
