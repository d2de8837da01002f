// Engine's verbs between steps: what is durable, and the state of parameters as the store has it.
#include <algorithm>
#include <utility>

#include "runtime/engine/engine_waits.h"
#include "runtime/engine/root_state.h"

namespace penstock::engine {

Status Engine::finish() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "finish"));
  return when_idle([](EngineCore& core) { return core.executor().status(); });
}

Status Engine::settle() {
  std::lock_guard lock(verbs_);
  return settle_steps();
}

void Engine::restore_state() {
  std::lock_guard lock(verbs_);
  restored_ = thread_->ask([this] { return core_->store().payload().trainer_state; });
}

Status Engine::settle_steps() {
  PENSTOCK_TRY(expect(Now::between_steps, "settle"));
  const bool last_is_durable = steps_done_ == 0 || plan_->durability.durable_after(steps_done_);
  return when_idle([&](EngineCore& core) {
    PENSTOCK_TRY(core.executor().status());
    if (last_is_durable || core.store().payload().step == steps_done_) return Status();
    PENSTOCK_TRY(fail_if_half_done(core, core.commit_resting(core.executor().last_payload())));
    core.executor().forget_unwritten();
    return Status();
  });
}

std::vector<aio::TileStore::FileRun> Engine::runs_of_durable_step() const {
  return thread_->ask([this] { return core_->store().runs_of_durable_step(); });
}

// It is alone.
Status Engine::exchange(std::span<const uint64_t> mine, std::span<uint64_t> all) {
  std::copy(mine.begin(), mine.end(), all.begin());
  return Status();
}

DriveBytes Engine::drive_bytes() const {
  return thread_->ask([this] { return core_->drive_bytes(); });
}

Status Engine::check_run(const char* verb, uint32_t unit, Role role, uint64_t first, uint64_t length_bytes) const {
  const Workload& workload = options_.request.workload;
  auto refuse = [&](const std::string& why) { return Status(Code::kUsage, text(verb, ": ", why)); };
  if (unit >= workload.units.size()) return refuse(text("unit ", unit, " of ", workload.units.size()));
  const Unit& shape = workload.units[unit];
  std::optional<Plane> plane;
  if (role == Role::weight) plane = Plane{role, workload.form.weight};
  for (const Plane& resting : resting_planes(workload.form)) {
    if (resting.role == role && shape.trainable) plane = resting;
  }
  if (!plane) return refuse(text("unit ", shape.name, " has no ", name_of(role)));
  const uint64_t size = bytes_of(plane->dtype), there = plane->values(shape.elements);
  if (length_bytes % size != 0 || first > there || length_bytes / size > there - first) {
    return refuse(text(length_bytes, " B of ", name_of(plane->dtype), " from ", name_of(role), " ", first, " of unit ",
                       shape.name, ", which has ", there));
  }
  return Status();
}

Status Engine::check_parameter(const char* verb, ParameterId id) const {
  const std::vector<Unit>& units = options_.request.workload.units;
  auto refuse = [&](const std::string& why) { return Status(Code::kUsage, text(verb, ": ", why)); };
  if (id.unit >= units.size()) return refuse(text("unit ", id.unit, " of ", units.size()));
  const Unit& unit = units[id.unit];
  if (id.parameter >= unit.parameters.size()) {
    return refuse(text("parameter ", id.parameter, " of ", unit.parameters.size(), " of unit ", unit.name));
  }
  if (!unit.trainable) return refuse(text("unit ", unit.name, " is frozen"));
  return Status();
}

Result<uint64_t> Engine::update_count(ParameterId id) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "update count"));
  PENSTOCK_TRY(check_parameter("update count", id));
  return state_.counts[id.unit].parameters[id.parameter];
}

Status Engine::write_update_count(ParameterId id, uint64_t count) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "update count"));
  PENSTOCK_TRY(check_parameter("update count", id));
  if (count > kUpdateCountMax) return Status(Code::kUsage, text("update count: ", count, ", at most 2^52 expected"));
  if (!in_writes_) PENSTOCK_TRY(settle_steps());
  state_.counts[id.unit].parameters[id.parameter] = count;
  note_write({{id.unit, id.parameter, count}}, {});
  return in_writes_ ? Status() : commit_writes();
}

// With the counts as they are now.
Status Engine::commit_writes() {
  return when_idle([&](EngineCore& core) {
    RootPayload payload = core.store().payload();
    if (payload.step > 0 || state_ != engine_state(options_.request.workload)) {
      payload.engine_state = encode(state_);
    }
    return fail_if_half_done(core, core.commit(std::move(payload)));
  });
}

Status Engine::begin_writes() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "begin writes"));
  if (in_writes_) return Status(Code::kUsage, "begin writes: writes have begun already");
  PENSTOCK_TRY(settle_steps());
  in_writes_ = true;
  has_written_ = false;
  return Status();
}

Status Engine::end_writes() {
  std::lock_guard lock(verbs_);
  if (!in_writes_) return Status(Code::kUsage, "end writes: no writes have begun");
  in_writes_ = false;
  return has_written_ ? commit_writes() : Status();
}

Status Engine::read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "read"));
  PENSTOCK_TRY(check_run("read", unit, role, first, values.size()));
  return when_idle([&](EngineCore& core) { return core.read_plane(unit, role, first, values); });
}

Status Engine::write(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "write"));
  PENSTOCK_TRY(check_run("write", unit, role, first, values.size()));
  if (!options_.request.workload.units[unit].trainable) {
    return Status(Code::kUsage, text("write: unit ", options_.request.workload.units[unit].name, " is frozen"));
  }
  if (!in_writes_) PENSTOCK_TRY(settle_steps());
  PENSTOCK_TRY(when_idle(
      [&](EngineCore& core) { return fail_if_half_done(core, core.write_plane(unit, role, first, values)); }));
  note_write({{unit, static_cast<uint64_t>(role), first}}, values);
  return in_writes_ ? Status() : commit_writes();
}

void Engine::note_write(const std::array<uint64_t, 3>& what, std::span<const std::byte> values) {
  has_written_ = true;
  if (!options_.has_other_ranks()) state_.course = course_after_write(state_.course, what, values);
}

}  // namespace penstock::engine
