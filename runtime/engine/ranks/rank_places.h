// Where things lie in the memory that ranks share.
#pragma once

#include <cstdint>

#include "tiering/tier.h"

namespace penstock::engine {

// What a place for so many bytes takes: places begin at multiples of 256 B.
inline uint64_t place_bytes(uint64_t bytes) { return round_up(bytes, 256); }

}  // namespace penstock::engine
