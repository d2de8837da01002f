#include "runtime/engine/root_state.h"

#include <charconv>

namespace penstock::engine {
namespace {

// The optimizer's count stands before the trainer's schedule, on a line of its own.
constexpr std::string_view kUpdates = "updates ";

}  // namespace

RootPayload root_payload(RootState state, uint64_t step, double loss_scale, const std::string& config_hash) {
  RootPayload payload;
  payload.step = step;
  payload.loss_scale = loss_scale;
  payload.rng = std::move(state.state.rng);
  payload.data_position = std::move(state.state.data_position);
  payload.schedule = text(kUpdates, state.updates, '\n', state.state.schedule);
  payload.config_hash = config_hash;
  return payload;
}

Status validate(const RootPayload& payload) {
  if (payload.size_bytes() <= kPayloadBytesMax) return Status();
  return Status(Code::kUsage,
                text("state beside the tiles: rng ", payload.rng.size(), " B, data position ",
                     payload.data_position.size(), " B, schedule ", payload.schedule.size(), " B, configuration ",
                     payload.config_hash.size(), " B: a root holds ", kPayloadBytesMax, " B together"),
                "keep seeds and counts, from which the rest is made again");
}

Result<RootState> parse_root_state(const RootPayload& payload) {
  RootState state;
  state.state.rng = payload.rng;
  state.state.data_position = payload.data_position;
  if (payload.schedule.empty() && payload.step == 0) return state;  // before the first step
  const char* end = payload.schedule.data() + payload.schedule.size();
  bool starts_well = payload.schedule.starts_with(kUpdates);
  auto [after, error] =
      std::from_chars(payload.schedule.data() + (starts_well ? kUpdates.size() : 0), end, state.updates);
  if (!starts_well || error != std::errc() || after == end || *after != '\n') {
    return Status(Code::kCorrupt, "store: the root's schedule is not one of this engine's");
  }
  if (state.updates > payload.step) {
    return Status(Code::kCorrupt, text("store: the root has ", state.updates, " updates in ", payload.step, " steps"));
  }
  state.state.schedule.assign(after + 1, end);
  return state;
}

}  // namespace penstock::engine
