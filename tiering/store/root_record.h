// RootRecord makes a step real: it names the slot of every page, and through the table's pages of every tile.
//
// It is written to every drive, at two places in turn: root n at place n % 2, so that root n - 1 stays whole until root
// n is durable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiering/store/root_payload.h"
#include "tiering/store/store_record.h"

namespace penstock {

// Pages of the table and of the run's state together; the record has two bits for each.
constexpr uint32_t kPagesMax = 6144;

// Of steps and of roots: one a nanosecond would take thirty years. Larger ones are nonsense, and have no next.
constexpr uint64_t kStepMax = 1'000'000'000'000'000'000;

struct RootRecord {
  // torn: a step is being written over the only slots (`space: single`); there is no way back.
  enum class State : uint8_t { whole, torn };

  StoreId store{};
  uint64_t sequence = 0;  // 1 for the first root of a store
  State state = State::whole;
  uint64_t shape_digest = 0;
  uint64_t pages_digest = 0;
  std::vector<uint8_t> page_slots;
  // Of RootPayload; the rest of it lies in the state pages.
  uint64_t step = 0;
  double loss_scale = 1;
  std::string config_hash{};

  bool operator==(const RootRecord&) const = default;
  void set(const RootPayload& payload);
  // Without the strings that lie in pages.
  RootPayload payload() const { return {.step = step, .loss_scale = loss_scale, .config_hash = config_hash}; }

  // REQUIRES: config_hash and page_slots within their limits.
  std::vector<std::byte> encode() const;
  // `what` names the place for messages.
  static Result<RootRecord> decode(std::span<const std::byte> bytes, const std::string& what);
};

}  // namespace penstock
