#include "runtime/engine/root_state.h"

#include <algorithm>

#include "tiering/store/byte_codec.h"

namespace penstock::engine {
namespace {

// Of what is not counted by parameter.
constexpr uint64_t kFixedBytes = 4096;

}  // namespace

EngineState engine_state(const Workload& workload, uint64_t updates) {
  EngineState state{.updates = updates, .counts = {}};
  for (const Unit& unit : workload.units) {
    state.counts.push_back({updates, std::vector<uint64_t>(unit.parameters.size(), updates)});
  }
  return state;
}

std::string encode(const EngineState& state) {
  ByteWriter out;
  out.put(state.updates);
  const bool all_alike = std::all_of(state.counts.begin(), state.counts.end(), [&](const UnitCounts& unit) {
    return unit == UnitCounts{state.updates, std::vector<uint64_t>(unit.parameters.size(), state.updates)};
  });
  for (const UnitCounts& unit : state.counts) {
    if (all_alike) break;
    out.put(unit.unnamed);
    for (uint64_t count : unit.parameters) out.put(count);
  }
  return {reinterpret_cast<const char*>(out.bytes().data()), out.size()};
}

Result<EngineState> parse_engine_state(const RootPayload& payload, const Workload& workload) {
  if (payload.engine_state.empty() && payload.step == 0) return engine_state(workload);  // before the first step
  ByteReader in(std::as_bytes(std::span(payload.engine_state)));
  EngineState state = engine_state(workload, in.get<uint64_t>());
  if (in.left() > 0) {
    for (UnitCounts& unit : state.counts) {
      unit.unnamed = in.get<uint64_t>();
      for (uint64_t& count : unit.parameters) count = in.get<uint64_t>();
    }
  }
  if (!in.ok() || in.left() > 0) {
    uint64_t counts = 1;
    for (const UnitCounts& unit : state.counts) counts += 1 + unit.parameters.size();
    return Status(Code::kCorrupt,
                  text("store: the engine's state of step ", payload.step, " has ", payload.engine_state.size(), " B, ",
                       sizeof(uint64_t), " or ", counts * sizeof(uint64_t), " B expected"));
  }
  if (state.updates > payload.step) {
    return Status(Code::kCorrupt, text("store: ", state.updates, " updates in ", payload.step, " steps"));
  }
  for (const UnitCounts& unit : state.counts) {
    auto fits = [](uint64_t count) { return count <= kUpdateCountMax; };
    if (!fits(unit.unnamed) || !std::all_of(unit.parameters.begin(), unit.parameters.end(), fits)) {
      return Status(Code::kCorrupt, text("store: a parameter's update count of step ", payload.step, " is above 2^52"));
    }
  }
  return state;
}

StateCapacity state_capacity_of(const Workload& workload) {
  StateCapacity capacity;
  capacity.engine_bytes = kFixedBytes;
  for (const Unit& unit : workload.units) capacity.engine_bytes += (1 + unit.parameters.size()) * sizeof(uint64_t);
  return capacity;
}

}  // namespace penstock::engine
