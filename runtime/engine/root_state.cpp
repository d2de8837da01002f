#include "runtime/engine/root_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "tiering/store/byte_codec.h"
#include "tiering/store/store_hash.h"

namespace penstock::engine {
namespace {

// Of what is not counted by parameter.
constexpr uint64_t kFixedBytes = 4096;

// Beside the updates, of which there are never so many: a course follows.
constexpr uint64_t kHasCourse = uint64_t{1} << 63;
constexpr uint64_t kCourseSeed = 0x4553'5255'4f43, kHyperSeed = 0x5250'5948;

}  // namespace

uint64_t hash_of(const std::vector<Hyper>& groups) {
  uint64_t hash = kHyperSeed;
  for (const auto& [lr, beta1, beta2, eps, weight_decay, momentum, dampening, nesterov, lr_decay] : groups) {
    const std::array<double, 9> fields = {
        lr, beta1, beta2, eps, weight_decay, momentum, dampening, lr_decay, nesterov ? 1.0 : 0.0};
    hash = store_hash(std::as_bytes(std::span(fields)), hash);
  }
  return hash;
}

uint64_t course_after(uint64_t course, double sum_of_squares, double loss_scale, const std::vector<Hyper>& groups) {
  // One that is not a number has many patterns.
  const uint64_t squares = std::isnan(sum_of_squares) ? 0 : std::bit_cast<uint64_t>(sum_of_squares);
  const std::array<uint64_t, 4> fields = {course, squares, std::bit_cast<uint64_t>(loss_scale), hash_of(groups)};
  return std::max<uint64_t>(1, store_hash(std::as_bytes(std::span(fields)), kCourseSeed));
}

uint64_t course_after_write(uint64_t course, std::span<const uint64_t> what, std::span<const std::byte> values) {
  return std::max<uint64_t>(1, store_hash(values, store_hash(std::as_bytes(what), course ^ kCourseSeed)));
}

uint64_t course_of(const RootPayload& payload) {
  ByteReader in(std::as_bytes(std::span(payload.engine_state)));
  return (in.get<uint64_t>() & kHasCourse) == 0 ? 0 : in.get<uint64_t>();
}

EngineState engine_state(const Workload& workload, uint64_t updates) {
  EngineState state{.updates = updates, .counts = {}};
  for (const Unit& unit : workload.units) {
    state.counts.push_back({updates, std::vector<uint64_t>(unit.parameters.size(), updates)});
  }
  return state;
}

std::string encode(const EngineState& state) {
  ByteWriter out;
  out.put(state.updates | (state.course == 0 ? 0 : kHasCourse));
  if (state.course != 0) out.put(state.course);
  const bool all_alike = std::all_of(state.counts.begin(), state.counts.end(), [&](const UnitCounts& unit) {
    return unit.unnamed == state.updates && std::all_of(unit.parameters.begin(), unit.parameters.end(),
                                                        [&](uint64_t count) { return count == state.updates; });
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
  const uint64_t updates = in.get<uint64_t>();
  EngineState state = engine_state(workload, updates & ~kHasCourse);
  if ((updates & kHasCourse) != 0) state.course = in.get<uint64_t>();
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
