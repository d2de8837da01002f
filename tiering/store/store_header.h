// StoreHeader says to which store a file belongs, as which drive, and how the store is laid out. Written only when the
// store is made, to two places of each drive.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiering/store/root_payload.h"
#include "tiering/store/store_layout.h"
#include "tiering/store/store_record.h"

namespace penstock {

constexpr uint32_t kDrivesMax = 64;

struct StoreHeader {
  // creating: the first root is not durable yet; such a store has nothing to recover.
  enum class State : uint8_t { creating, complete };

  uint32_t format = kStoreFormat;
  StoreId store{};
  State state = State::creating;
  uint32_t drive = 0;
  uint32_t slots = 2;
  std::vector<uint32_t> shares;  // of each drive, in ten-thousandths
  StateCapacity state_capacity{};
  WeightPlacement weights = kDefaultWeightPlacement;
  uint64_t shape_bytes = 0;  // of its encoding
  uint64_t shape_digest = 0;
  uint64_t file_bytes = 0;

  bool operator==(const StoreHeader&) const = default;
  uint32_t drives() const { return static_cast<uint32_t>(shares.size()); }

  std::vector<std::byte> encode() const;
  static Result<StoreHeader> decode(std::span<const std::byte> bytes, const std::string& what);
};

}  // namespace penstock
