// A processor, or an operating system, that lacks one thing that the compiler may use is not given the kernels.
#include "cpu_optim/isa.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cpu_optim/instructions.h"
#include "cpu_optim/kernels.h"

namespace penstock::cpu_optim {
namespace {

#if defined(__x86_64__)

// As Intel's manual numbers them (volume 2A, CPUID; volume 1, 13.3).
constexpr int kLeaf1Ecx[] = {0 /*SSE3*/,    9 /*SSSE3*/,   12 /*FMA*/, 19 /*SSE4.1*/,
                             20 /*SSE4.2*/, 23 /*POPCNT*/, 28 /*AVX*/, 29 /*F16C*/};
constexpr int kLeaf7OfAvx2[] = {5 /*AVX2*/};
constexpr int kLeaf7OfAvx512[] = {5 /*AVX2*/, 16 /*F*/, 17 /*DQ*/, 28 /*CD*/, 30 /*BW*/, 31 /*VL*/};
constexpr int kXcr0OfAvx2[] = {1, 2};
constexpr int kXcr0OfAvx512[] = {1, 2, 5, 6, 7};

bool can_run(const Kernels& kernels, const ProcessorWords& words) {
  return (kernels.instructions & ~instructions_of(words)) == 0;
}

void expect_each_is_needed(const Kernels& kernels, std::span<const int> leaf7, std::span<const int> xcr0) {
  ProcessorWords needed;
  for (int bit : kLeaf1Ecx) needed.leaf1_ecx |= 1u << bit;
  for (int bit : leaf7) needed.leaf7_ebx |= 1u << bit;
  for (int bit : xcr0) needed.xcr0 |= 1u << bit;
  EXPECT_TRUE(can_run(kernels, needed)) << name_of(kernels.isa);
  auto expect_refused = [&](uint32_t ProcessorWords::*word, std::span<const int> bits, const char* what) {
    for (int bit : bits) {
      ProcessorWords lacking = needed;
      lacking.*word &= ~(1u << bit);
      EXPECT_FALSE(can_run(kernels, lacking)) << name_of(kernels.isa) << " without bit " << bit << " of " << what;
    }
  };
  expect_refused(&ProcessorWords::leaf1_ecx, kLeaf1Ecx, "leaf 1, ECX");
  expect_refused(&ProcessorWords::leaf7_ebx, leaf7, "leaf 7, EBX");
  expect_refused(&ProcessorWords::xcr0, xcr0, "XCR0");
}

TEST(Isa, AsksForEveryInstructionSetThatTheCompilerMayUse) {
  expect_each_is_needed(kAvx2Kernels, kLeaf7OfAvx2, kXcr0OfAvx2);
  expect_each_is_needed(kAvx512Kernels, kLeaf7OfAvx512, kXcr0OfAvx512);
}

TEST(Isa, NeedsNothingForTheSlowOnesThatTheProgramDoesNotNeedItself) {
  for (const Kernels* kernels : {&kScalarKernels, &kSse2Kernels}) {
    EXPECT_EQ(kernels->instructions, kCompiledFor) << name_of(kernels->isa);
  }
}

TEST(Isa, AgreesWithTheCompilersOwnQuestion) {
  const std::vector<Isa> isas = available_isas();
  const auto has = [&](Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); };
  EXPECT_EQ(has(Isa::avx2), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(has(Isa::avx512), __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"));
}

#endif

}  // namespace
}  // namespace penstock::cpu_optim
