#include "runtime/engine/root_state.h"

#include "tiering/store/byte_codec.h"

namespace penstock::engine {
namespace {

// Of what is not counted by parameter.
constexpr uint64_t kFixedBytes = 4096;

}  // namespace

std::string encode(const EngineState& state) {
  ByteWriter out;
  out.put(state.updates);
  return {reinterpret_cast<const char*>(out.bytes().data()), out.size()};
}

Result<EngineState> parse_engine_state(const RootPayload& payload) {
  if (payload.engine_state.empty() && payload.step == 0) return EngineState();  // before the first step
  ByteReader in(std::as_bytes(std::span(payload.engine_state)));
  EngineState state;
  state.updates = in.get<uint64_t>();
  if (!in.ok() || in.left() > 0) {
    return Status(Code::kCorrupt, text("store: the engine's state of step ", payload.step, " has ",
                                       payload.engine_state.size(), " B, ", sizeof(uint64_t), " B expected"));
  }
  if (state.updates > payload.step) {
    return Status(Code::kCorrupt, text("store: ", state.updates, " updates in ", payload.step, " steps"));
  }
  return state;
}

StateCapacity state_capacity_of(const Workload& workload) {
  StateCapacity capacity;
  capacity.engine_bytes = kFixedBytes;
  for (const Unit& unit : workload.units) capacity.engine_bytes += unit.parameters.size() * sizeof(uint64_t);
  return capacity;
}

}  // namespace penstock::engine
