// RootRecord makes a step real: it names the slot of every table page, and through them of every tile.
//
// It is written to every drive, at two places in turn: root n at place n % 2, so that root n - 1 stays whole until root
// n is durable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiering/store/store_record.h"

namespace penstock {

// What the run needs besides the tiles to go on after step `step`, captured when that step ended. The strings are the
// run's own bytes; together at most kPayloadBytesMax.
struct RootPayload {
  uint64_t step = 0;
  double loss_scale = 1;
  std::string rng{};
  std::string data_position{};
  std::string schedule{};
  std::string config_hash{};

  bool operator==(const RootPayload&) const = default;
  size_t size_bytes() const { return rng.size() + data_position.size() + schedule.size() + config_hash.size(); }
};
constexpr size_t kPayloadBytesMax = 2048;

// Two bits each in the record.
constexpr uint32_t kTablePagesMax = 6144;

// Of steps and of roots: one a nanosecond would take thirty years. Larger ones are nonsense, and have no next.
constexpr uint64_t kStepMax = 1'000'000'000'000'000'000;

struct RootRecord {
  // torn: a step is being written over the only slots (`space: single`); there is no way back.
  enum class State : uint8_t { whole, torn };

  StoreId store{};
  uint64_t sequence = 0;  // 1 for the first root of a store
  State state = State::whole;
  uint64_t shape_digest = 0;
  uint64_t table_digest = 0;
  std::vector<uint8_t> page_slots;
  RootPayload payload;

  bool operator==(const RootRecord&) const = default;

  // REQUIRES: payload and page_slots within their limits.
  std::vector<std::byte> encode() const;
  // `what` names the place for messages.
  static Result<RootRecord> decode(std::span<const std::byte> bytes, const std::string& what);
};

}  // namespace penstock
