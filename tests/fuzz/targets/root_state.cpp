#include "runtime/engine/root_state.h"

#include "tests/fuzz/target.h"
#include "tiering/hyper.h"
#include "tiering/store/byte_codec.h"

namespace penstock::fuzz {
namespace {

Workload two_units() {
  Workload workload;
  workload.units.resize(2);
  workload.units[0].parameters.resize(2);
  return workload;
}

// The step, then the engine's state as the root has it.
Bytes input_of(uint64_t step, uint64_t updates, uint64_t absences = 0) {
  engine::EngineState state = engine::engine_state(two_units(), updates);
  state.counts[0].parameters[1] -= absences;
  ByteWriter out;
  out.put(step);
  out.put_bytes(bytes_of(engine::encode(state)));
  return out.take();
}

std::vector<Bytes> seeds() {
  return {Bytes(),        Bytes(8),          input_of(0, 0),
          input_of(9, 7), input_of(9, 7, 3), input_of(uint64_t{1} << 40, uint64_t{1} << 40)};
}

std::string run(std::span<const std::byte> input) {
  ByteReader in(input);
  RootPayload payload;
  payload.step = in.get<uint64_t>();
  payload.engine_state = text_of(in.get_bytes(in.left()));
  const Result<engine::EngineState> state = engine::parse_engine_state(payload, two_units());
  if (!state.ok()) return "";
  if (state->updates > payload.step) return "more updates than steps";
  (void)make_coefficients(OptimizerKind::adamw, Hyper(), state->counts[0].parameters[1] + 1);
  payload.engine_state = engine::encode(*state);
  const Result<engine::EngineState> back = engine::parse_engine_state(payload, two_units());
  if (!back.ok()) return "written again it is refused: " + back.status().message();
  return *back == *state ? "" : "written again it is another";
}

}  // namespace

const Target root_state{.name = "root_state", .seeds = seeds, .run = run, .rounds = 40000};

}  // namespace penstock::fuzz
