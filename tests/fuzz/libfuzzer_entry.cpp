// What libFuzzer calls, for the one target that PENSTOCK_FUZZ_TARGET names.
//
//   build/bin/fuzz_store_shape -max_total_time=120 [FOLDER of inputs]
#include <cstring>

#include "tests/fuzz/target.h"
#include "tiering/check.h"

namespace penstock::fuzz {
namespace {

const Target& target = PENSTOCK_FUZZ_TARGET;

const std::vector<Bytes>& seeds() {
  static const std::vector<Bytes> all = target.seeds();
  return all;
}

}  // namespace
}  // namespace penstock::fuzz

using namespace penstock::fuzz;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_most);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string wrong = try_input(target, std::as_bytes(std::span(data, size)));
  CHECK(wrong.empty(), target.name, ": ", wrong);
  return 0;
}

// libFuzzer's own mutations in turn with ours, and at times a valid input to begin from again.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_most, unsigned seed) {
  if (seed % 2 == 0 && size > 1) return LLVMFuzzerMutate(data, size, size_most);
  const bool afresh = size <= 1 || seed % 64 == 1;
  const std::span<const std::byte> given = std::as_bytes(std::span(data, size));
  Bytes bytes = afresh ? seeds()[seed / 64 % seeds().size()] : Bytes(given.begin(), given.end());
  bytes = mutated(target, seeds(), std::move(bytes), seed);
  bytes.resize(std::min(bytes.size(), size_most));
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}
