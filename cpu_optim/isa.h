// The instruction sets for which kernels exist. All give the same bits and differ only in speed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace penstock::cpu_optim {

enum class Isa : uint8_t {
  scalar,  // the definition: one element at a time, std::fma
  sse2,    // 4 lanes; every fma is emulated exactly, so it is slow
  avx2,    // 8 lanes; needs AVX2, FMA, F16C and an operating system that saves their registers
  avx512,  // 16 lanes; needs also AVX-512 F, BW, DQ, VL, CD and an operating system that saves their registers
  neon,    // 4 lanes, AArch64
};

const char* name_of(Isa isa);
std::optional<Isa> isa_named(std::string_view name);

// Those that this build has kernels for and this processor can run, slowest first. Never empty.
std::vector<Isa> available_isas();
Isa best_isa();

}  // namespace penstock::cpu_optim
