#include "runtime/engine/root_state.h"

#include "tests/fuzz/target.h"
#include "tiering/hyper.h"

namespace penstock::fuzz {
namespace {

using engine::RootState;

RootPayload payload_of(uint64_t updates, uint64_t step, const std::string& schedule) {
  return engine::root_payload({updates, {.rng = "r", .data_position = "d", .schedule = schedule}}, step, 1, "hash");
}

Bytes input_of(const RootPayload& payload) {
  ByteWriter out;
  out.put(payload.step);
  out.put_bytes(bytes_of(payload.schedule));
  return out.take();
}

// The step, then the schedule as the root has it.
std::vector<Bytes> seeds() {
  return {input_of(payload_of(0, 0, "")), input_of(payload_of(7, 9, "warm-up 100\ncosine")),
          input_of(payload_of(uint64_t{1} << 40, uint64_t{1} << 40, std::string(500, 'x'))), input_of(RootPayload())};
}

std::string run(std::span<const std::byte> input) {
  ByteReader in(input);
  RootPayload payload;
  payload.step = in.get<uint64_t>();
  payload.schedule = text_of(in.get_bytes(in.left()));
  const Result<RootState> state = engine::parse_root_state(payload);
  if (!state.ok()) return "";
  if (state->updates > payload.step) return "more updates than steps";
  (void)make_coefficients(OptimizerKind::adamw, Hyper(), state->updates + 1);
  const RootPayload again = engine::root_payload(*state, payload.step, 1, "hash");
  const Result<RootState> back = engine::parse_root_state(again);
  if (!back.ok()) return "written again it is refused: " + back.status().message();
  const bool same = back->updates == state->updates && back->state.schedule == state->state.schedule;
  return same ? "" : "written again it is another";
}

constexpr std::string_view kWords[] = {"updates ", "\n", " ", "18446744073709551616", "007", "+1"};

}  // namespace

const Target root_state{.name = "root_state", .seeds = seeds, .run = run, .words = kWords, .rounds = 40000};

}  // namespace penstock::fuzz
