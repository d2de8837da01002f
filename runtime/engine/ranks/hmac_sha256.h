// hmac_sha256() is what ranks prove with that they know their run's secret: RFC 2104 over SHA-256, FIPS 180-4.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace penstock::engine {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> message);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);
// In a time that does not tell where they differ.
bool is_same(const Digest& one, const Digest& other);

}  // namespace penstock::engine
