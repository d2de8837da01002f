// store_hash() is the hash of all that a store says about itself: records, table and state pages, shapes and digests.
// XXH3, 64 bits, from xxHash. Blocks of tiles have the checksum of tiering/arithmetic instead; why is said there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// `seed`: what kind of thing is hashed, so that one kind is not taken for another.
uint64_t store_hash(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace penstock
