#include "cpu_optim/isa.h"

#include <algorithm>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu_optim/instructions.h"
#include "cpu_optim/kernels.h"
#include "tiering/check.h"

namespace penstock::cpu_optim {
namespace {

constexpr Isa kIsas[] = {Isa::scalar, Isa::sse2, Isa::avx2, Isa::avx512, Isa::neon};

// Null where this build has none.
const Kernels* kernels_of_build(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return &kScalarKernels;
#if defined(__x86_64__)
    case Isa::sse2:
      return &kSse2Kernels;
    case Isa::avx2:
      return &kAvx2Kernels;
    case Isa::avx512:
      return &kAvx512Kernels;
#elif defined(__aarch64__)
    case Isa::neon:
      return &kNeonKernels;
#endif
    default:
      return nullptr;
  }
}

// Null where this build has none or this processor cannot run them.
const Kernels* kernels_if_available(Isa isa) {
  static const uint32_t may_run = instructions_of(this_processor());
  const Kernels* kernels = kernels_of_build(isa);
  return kernels == nullptr || (kernels->instructions & ~may_run) != 0 ? nullptr : kernels;
}

}  // namespace

ProcessorWords this_processor() {
  ProcessorWords words;
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) words.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) words.leaf7_ebx = ebx;
  if ((words.leaf1_ecx & bit_OSXSAVE) != 0) asm volatile("xgetbv" : "=a"(words.xcr0), "=d"(edx) : "c"(0));
#endif
  return words;
}

uint32_t instructions_of([[maybe_unused]] const ProcessorWords& words) {
  uint32_t instructions = 0;
#if defined(__x86_64__)
  const auto add = [&](uint32_t one, uint32_t word, uint32_t bit) {
    if ((word & bit) != 0) instructions |= one;
  };
  add(kSse3, words.leaf1_ecx, bit_SSE3);
  add(kSsse3, words.leaf1_ecx, bit_SSSE3);
  add(kSse41, words.leaf1_ecx, bit_SSE4_1);
  add(kSse42, words.leaf1_ecx, bit_SSE4_2);
  add(kPopcnt, words.leaf1_ecx, bit_POPCNT);
  // Of XCR0: SSE and AVX registers, 1 and 2; masks, upper halves of ZMM0-15 and ZMM16-31, 5 to 7.
  constexpr uint32_t kSavesAvx = 0x06, kSavesAvx512 = 0xe6;
  if ((words.xcr0 & kSavesAvx) != kSavesAvx) return instructions;
  add(kAvx, words.leaf1_ecx, bit_AVX);
  add(kF16c, words.leaf1_ecx, bit_F16C);
  add(kFma, words.leaf1_ecx, bit_FMA);
  add(kAvx2, words.leaf7_ebx, bit_AVX2);
  if ((words.xcr0 & kSavesAvx512) != kSavesAvx512) return instructions;
  add(kAvx512F, words.leaf7_ebx, bit_AVX512F);
  add(kAvx512Dq, words.leaf7_ebx, bit_AVX512DQ);
  add(kAvx512Cd, words.leaf7_ebx, bit_AVX512CD);
  add(kAvx512Bw, words.leaf7_ebx, bit_AVX512BW);
  add(kAvx512Vl, words.leaf7_ebx, bit_AVX512VL);
#endif
  return instructions;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::sse2:
      return "sse2";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::neon:
      return "neon";
  }
  return "?";
}

std::optional<Isa> isa_named(std::string_view name) {
  for (Isa isa : kIsas) {
    if (name == name_of(isa)) return isa;
  }
  return std::nullopt;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  std::copy_if(std::begin(kIsas), std::end(kIsas), std::back_inserter(isas),
               [](Isa isa) { return kernels_if_available(isa) != nullptr; });
  return isas;
}

Isa best_isa() { return available_isas().back(); }

const Kernels& kernels_of(Isa isa) {
  const Kernels* kernels = kernels_if_available(isa);
  CHECK(kernels != nullptr, name_of(isa), " kernels: not part of this build, or not supported by this processor");
  return *kernels;
}

}  // namespace penstock::cpu_optim
