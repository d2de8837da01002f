// RootPayload is what a root carries besides the tiles: everything a run needs to go on after its step.
//
// The step, the loss scale and the configuration's hash stand in the root record itself. The engine's and the trainer's
// own state are byte strings that the store does not look into. They lie in pages behind those of the table, are copied
// on write like them, and are covered by the same hash in the root. Each string has a place of fixed size, so that a
// change of one leaves the pages of the other alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock {

constexpr uint64_t kConfigHashBytesMax = 256;
constexpr uint64_t kEngineStateBytesMax = 1 << 20;
constexpr uint64_t kTrainerStateBytesMax = 64 << 10;

// The room a store has for each kind of state. Fixed when the store is made; its header keeps it.
struct StateCapacity {
  uint64_t engine_bytes = 4096;
  uint64_t trainer_bytes = kTrainerStateBytesMax;

  bool operator==(const StateCapacity&) const = default;
  // Refuses more than any store may have.
  Status validate() const;
};

// Captured when step `step` ended.
struct RootPayload {
  uint64_t step = 0;
  double loss_scale = 1;
  std::string config_hash{};
  std::string engine_state{};
  std::string trainer_state{};

  bool operator==(const RootPayload&) const = default;
  // Refuses what does not fit, with the bytes needed and the bytes available.
  Status validate(const StateCapacity& capacity) const;
};

// The words that the state pages of one root hold together: the two lengths, then each string at its place, then zeros.
uint64_t state_word_count(const StateCapacity& capacity);
// REQUIRES: payload.validate(capacity) is ok.
std::vector<uint64_t> encode_state(const RootPayload& payload, const StateCapacity& capacity);
// Sets the two strings of `payload`. Refuses lengths beyond the capacity and bytes that encode_state() did not write.
// REQUIRES: state_word_count(capacity) words.
Status decode_state(std::span<const uint64_t> words, const StateCapacity& capacity, RootPayload& payload);

}  // namespace penstock
