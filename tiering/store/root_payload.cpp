#include "tiering/store/root_payload.h"

#include <algorithm>
#include <cstring>

#include "tiering/check.h"
#include "tiering/tier.h"

namespace penstock {
namespace {

constexpr uint64_t kLengthWords = 2;

uint64_t words_for(uint64_t bytes) { return ceil_div(bytes, sizeof(uint64_t)); }

Status refuse(const char* what, uint64_t needed_bytes, uint64_t available_bytes, const char* remedy) {
  return Status(Code::kUsage,
                text(what, ": ", needed_bytes, " B needed, ", available_bytes, " B available in the store"), remedy);
}

void put_string(std::span<uint64_t> place, const std::string& from) {
  if (!from.empty()) std::memcpy(place.data(), from.data(), from.size());
}

// Nothing where something other than zeros follows the string.
bool get_string(std::span<const uint64_t> place, uint64_t length_bytes, std::string& into) {
  const std::span<const std::byte> bytes = std::as_bytes(place);
  into.assign(reinterpret_cast<const char*>(bytes.data()), length_bytes);
  return std::all_of(bytes.begin() + static_cast<ptrdiff_t>(length_bytes), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

Status StateCapacity::validate() const {
  if (engine_bytes > kEngineStateBytesMax) {
    return refuse("room for the engine's state", engine_bytes, kEngineStateBytesMax, "use fewer, larger parameters");
  }
  if (trainer_bytes > kTrainerStateBytesMax) {
    return refuse("room for the trainer's state", trainer_bytes, kTrainerStateBytesMax,
                  "keep seeds and counts, from which the rest can be made again");
  }
  return Status();
}

Status RootPayload::validate(const StateCapacity& capacity) const {
  if (config_hash.size() > kConfigHashBytesMax) {
    return refuse("configuration hash", config_hash.size(), kConfigHashBytesMax, "use a hash, not the configuration");
  }
  if (engine_state.size() > capacity.engine_bytes) {
    return refuse("engine state", engine_state.size(), capacity.engine_bytes,
                  "make a new store with --force; this one was made for fewer parameters");
  }
  if (trainer_state.size() > capacity.trainer_bytes) {
    return refuse("trainer state", trainer_state.size(), capacity.trainer_bytes,
                  "keep seeds and counts, from which the rest can be made again");
  }
  return Status();
}

uint64_t state_word_count(const StateCapacity& capacity) {
  return kLengthWords + words_for(capacity.engine_bytes) + words_for(capacity.trainer_bytes);
}

std::vector<uint64_t> encode_state(const RootPayload& payload, const StateCapacity& capacity) {
  CHECK(payload.validate(capacity).ok(), "the state of step ", payload.step, " does not fit its store");
  std::vector<uint64_t> words(state_word_count(capacity), 0);
  words[0] = payload.engine_state.size();
  words[1] = payload.trainer_state.size();
  const std::span<uint64_t> engine = std::span(words).subspan(kLengthWords, words_for(capacity.engine_bytes));
  put_string(engine, payload.engine_state);
  put_string(std::span(words).subspan(kLengthWords + engine.size()), payload.trainer_state);
  return words;
}

Status decode_state(std::span<const uint64_t> words, const StateCapacity& capacity, RootPayload& payload) {
  CHECK(words.size() == state_word_count(capacity));
  const uint64_t engine_words = words_for(capacity.engine_bytes);
  const bool fits = words[0] <= capacity.engine_bytes && words[1] <= capacity.trainer_bytes;
  if (!fits || !get_string(words.subspan(kLengthWords, engine_words), words[0], payload.engine_state) ||
      !get_string(words.subspan(kLengthWords + engine_words), words[1], payload.trainer_state)) {
    return Status(Code::kCorrupt, text("state of step ", payload.step, ": fields that make no sense"));
  }
  return Status();
}

}  // namespace penstock
