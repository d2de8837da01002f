// What instrumented builds, ten times as slow, leave out: of a thousand seeded rounds or cuts that are alike, the plain
// build runs all and they run some.
#pragma once

#include <cstdint>

namespace penstock::test {

// So few are enough for a sanitizer to see every line; odd, so that it stays in step with nothing.
#ifdef PENSTOCK_DCHECKS
constexpr uint64_t kStride = 11;
#else
constexpr uint64_t kStride = 1;
#endif

constexpr uint64_t fewer(uint64_t rounds) { return (rounds + kStride - 1) / kStride; }

}  // namespace penstock::test
