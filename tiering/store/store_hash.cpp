#include "tiering/store/store_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock {

uint64_t store_hash(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace penstock
