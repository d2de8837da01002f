#include "cpu_optim/isa.h"

#include <algorithm>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu_optim/kernels.h"
#include "tiering/check.h"

namespace penstock::cpu_optim {
namespace {

constexpr Isa kIsas[] = {Isa::scalar, Isa::sse2, Isa::avx2, Isa::avx512, Isa::neon};

#if defined(__x86_64__)
// Clang's __builtin_cpu_supports does not know its name.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

// Null where this build has none or this processor cannot run them.
const Kernels* kernels_if_available(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return &kScalarKernels;
#if defined(__x86_64__)
    case Isa::sse2:
      return &kSse2Kernels;
    case Isa::avx2:
      // The compiler's test includes that of the operating system's support for the registers.
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() ? &kAvx2Kernels : nullptr;
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                 ? &kAvx512Kernels
                 : nullptr;
#elif defined(__aarch64__)
    case Isa::neon:
      return &kNeonKernels;
#endif
    default:
      return nullptr;
  }
}

}  // namespace

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
  CHECK(kernels != nullptr, name_of(isa), " kernels are not in this build, or this processor lacks the instructions");
  return *kernels;
}

}  // namespace penstock::cpu_optim
