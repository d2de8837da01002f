// checksum() is the definition of the 64-bit value kept for every block of 64 Ki elements. SIMD versions elsewhere must
// return the same value whatever their width; they may also take the stripes as they leave the registers of a kernel.
//
// The block is read as stripes of 64 bytes, the last one filled up with zeros, each of eight little-endian words. Lane
// j sums, modulo 2^64 and over the stripes s,
//
//     x = word ^ (kChecksumKeys[j] + s * kChecksumKeyStep)
//     low(x) * high(x) + x                                     with the two 32-bit halves of x
//
// and finish_checksum() folds the lanes, the length and the seed into one value. Six vector operations a stripe, none
// of them across lanes, so eight, four or two lanes at a time give the same sums.
//
// Why not XXH3, which the rest of a store is hashed with: the update computes two of these for every byte it moves, of
// what it reads and of what it writes, in the loop that has the bytes in registers anyway. XXH3 reads its input in
// another order (stripes of 64 bytes in blocks of 1024 with a step across lanes between them), and its result depends
// on where in the input the accumulators are scrambled; planes of different element sizes, of which that loop holds a
// few elements at a time, would have to be buffered for it or read a second time. These lanes need nothing but the
// stripe's number.
//
// What it promises: a change inside one aligned 32-bit word always changes the value, and so does another seed, which
// is therefore made of the block's place: a block read from elsewhere is not believed. (Product and sum together are
// (low + 2^32) * (high + 1) - 2^32; with one factor fixed, no two values of the other agree modulo 2^64, and every
// later step is a bijection in the one lane that differs.) Words or stripes that are swapped, shifted, zeroed or stale
// meet other keys; such a change is missed with a chance of about 2^-64. What it does not: withstand somebody who
// chooses the bytes. It finds accidents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

constexpr uint64_t kChecksumStripeBytes = 64;
constexpr size_t kChecksumLanes = 8;

using ChecksumLanes = std::array<uint64_t, kChecksumLanes>;

// Fractional digits of the square roots of the first primes: numbers with nothing up their sleeve.
constexpr ChecksumLanes kChecksumKeys = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                         0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                         0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
// 2^64 / golden ratio: for a million stripes both halves of every two keys differ.
constexpr uint64_t kChecksumKeyStep = 0x9e3779b97f4a7c15;

// Adds stripe number `stripe` to the lanes. For who goes through a block piece by piece.
void add_checksum_stripe(ChecksumLanes& lanes, const std::byte* stripe_bytes, uint64_t stripe);

// The value of a block of `length_bytes` whose stripes have been summed into `lanes`, which began as zeros.
uint64_t finish_checksum(const ChecksumLanes& lanes, uint64_t length_bytes, uint64_t seed);

uint64_t checksum(std::span<const std::byte> block, uint64_t seed);

// What a store is handed, so that it need not know which SIMD version is the fastest here.
using ChecksumFunction = uint64_t (*)(std::span<const std::byte> block, uint64_t seed);

}  // namespace penstock
