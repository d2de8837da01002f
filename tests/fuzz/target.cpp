#include "tests/fuzz/target.h"

#include <ctime>
#include <exception>

#include "tests/fuzz/memory_limit.h"
#include "tiering/check.h"

namespace penstock::fuzz {
namespace {

double processor_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

#ifdef PENSTOCK_DCHECKS
constexpr double kSlower = 20;  // instrumented
#else
constexpr double kSlower = 1;
#endif

}  // namespace

std::string try_input(const Target& target, std::span<const std::byte> input) {
  const double begun = processor_seconds();
  std::string wrong;
  uint64_t refused_bytes = 0;
  {
    MemoryLimit limit(target.memory_bytes + kBytesPerByte * input.size());
    try {
      wrong = target.run(input);
    } catch (const std::exception& thrown) {
      wrong = text("threw: ", thrown.what());
    }
    refused_bytes = limit.refused_bytes();
  }
  if (refused_bytes > 0) return text("asks for ", refused_bytes, " B more because of ", input.size(), " B");
  if (!wrong.empty()) return wrong;
  const double seconds = processor_seconds() - begun;
  return seconds > target.seconds * kSlower ? text("takes ", seconds, " s for ", input.size(), " B") : "";
}

}  // namespace penstock::fuzz
