#include "cpu_optim/checksum.h"

#include "cpu_optim/running_checksum.h"

namespace penstock::cpu_optim {
namespace {

template <Isa kIsa>
uint64_t checksum_on(std::span<const std::byte> block, uint64_t seed) {
  RunningChecksum sum;
  sum.add(kernels_of(kIsa), block.data(), block.size());
  return sum.finish(seed);
}

}  // namespace

ChecksumFunction checksum_function(Isa isa) {
  switch (kernels_of(isa).isa) {
    case Isa::scalar:
      return penstock::checksum;
    case Isa::sse2:
      return checksum_on<Isa::sse2>;
    case Isa::avx2:
      return checksum_on<Isa::avx2>;
    case Isa::avx512:
      return checksum_on<Isa::avx512>;
    case Isa::neon:
      return checksum_on<Isa::neon>;
  }
  return penstock::checksum;
}

}  // namespace penstock::cpu_optim
