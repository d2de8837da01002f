// What EmbeddedEngine reads, writes and keeps of the state between steps, by parameter.
#include <algorithm>
#include <cstring>

#include "runtime/engine/embedded_engine.h"

namespace penstock::engine {
namespace {

std::byte* bytes_at(float* values) { return reinterpret_cast<std::byte*>(values); }

}  // namespace

Status EmbeddedEngine::check_run(const char* verb, uint32_t parameter, uint64_t first, uint64_t count) const {
  PENSTOCK_TRY(check(verb, parameter));
  const uint64_t elements = shape(parameter).elements;
  if (first <= elements && count <= elements - first) return Status();
  return Status(Code::kUsage, text(verb, ": ", count, " values from ", first, " on of parameter ",
                                   shape(parameter).name, ", which has ", elements));
}

Status EmbeddedEngine::read(uint32_t parameter, Role role, uint64_t first, uint64_t count, Dtype dtype,
                            std::byte* values) {
  PENSTOCK_TRY(check_run("read", parameter, first, count));
  const EmbeddedModel::Place& place = model_.places[parameter];
  const uint64_t begins = place.first_element + first;
  if (dtype == Dtype::fp32) return engine_->read(place.id.unit, role, begins, {values, count * sizeof(float)});
  std::vector<float> run(std::min(count, kRunElements));
  for (uint64_t done = 0; done < count; done += run.size()) {
    const uint64_t here = std::min<uint64_t>(run.size(), count - done);
    PENSTOCK_TRY(engine_->read(place.id.unit, role, begins + done, std::as_writable_bytes(std::span(run).first(here))));
    kernels_.cast(Dtype::fp32, bytes_at(run.data()), dtype, values + done * bytes_of(dtype), here);
  }
  return Status();
}

Status EmbeddedEngine::write(uint32_t parameter, Role role, uint64_t first, uint64_t count, Dtype dtype,
                             const std::byte* values) {
  PENSTOCK_TRY(refuse_of_ranks("write"));
  PENSTOCK_TRY(check_run("write", parameter, first, count));
  const EmbeddedModel::Place& place = model_.places[parameter];
  const uint64_t begins = place.first_element + first;
  if (dtype == Dtype::fp32) return alone_->write(place.id.unit, role, begins, {values, count * sizeof(float)});
  std::vector<float> run(count);  // all of it, or nothing, becomes durable
  kernels_.cast(dtype, values, Dtype::fp32, bytes_at(run.data()), count);
  return alone_->write(place.id.unit, role, begins, std::as_bytes(std::span(run)));
}

Status EmbeddedEngine::check_weights(uint32_t parameter, EmbeddedParameter::Weights weights) const {
  if (!weights.out || options_.weights_out) return Status();
  return Status(Code::kUsage,
                text("parameter ", shape(parameter).name, ": PENSTOCK_WEIGHTS_OUT, and no function weights_out"),
                "give penstock_options.weights_out");
}

Status EmbeddedEngine::begin_writes() {
  PENSTOCK_TRY(refuse_of_ranks("begin writes"));
  return alone_->begin_writes();
}

Status EmbeddedEngine::end_writes() {
  PENSTOCK_TRY(refuse_of_ranks("end writes"));
  return alone_->end_writes();
}

Status EmbeddedEngine::set_weights(uint32_t parameter, Dtype dtype, EmbeddedParameter::Weights weights) {
  if (weights != EmbeddedParameter::Weights()) PENSTOCK_TRY(refuse_of_ranks("weights into"));
  PENSTOCK_TRY(check("weights into", parameter));
  PENSTOCK_TRY(check_weights(parameter, weights));
  EmbeddedParameter& target = options_.parameters[parameter];
  if (target.dtype == dtype && target.weights == weights) return Status();
  if (in_step_) return Status(Code::kUsage, "weights into: called inside a step");
  if (options_.settings.whole_steps) PENSTOCK_TRY(engine_->finish());
  target.dtype = dtype;
  target.weights = weights;
  return Status();
}

Result<uint64_t> EmbeddedEngine::adopt(uint32_t parameter, uint64_t begins, uint64_t count, Dtype dtype,
                                       const std::byte* weights) {
  PENSTOCK_TRY(refuse_of_ranks("adopt"));
  PENSTOCK_TRY(check_run("adopt", parameter, begins, count));
  const uint64_t size = bytes_of(dtype);
  std::vector<float> masters(std::min(count, kRunElements)), given(masters.size());
  std::vector<std::byte> rounded(masters.size() * size);
  uint64_t changed = 0;
  for (uint64_t done = 0; done < count; done += masters.size()) {
    const uint64_t here = std::min<uint64_t>(masters.size(), count - done), first = begins + done;
    PENSTOCK_TRY(read(parameter, Role::weight, first, here, Dtype::fp32, bytes_at(masters.data())));
    kernels_.cast(Dtype::fp32, bytes_at(masters.data()), dtype, rounded.data(), here);
    const std::byte* there = weights + done * size;
    if (std::memcmp(rounded.data(), there, here * size) == 0) continue;
    kernels_.cast(dtype, there, Dtype::fp32, bytes_at(given.data()), here);
    for (uint64_t i = 0; i < here; ++i) {
      if (std::memcmp(rounded.data() + i * size, there + i * size, size) == 0) continue;
      masters[i] = given[i];
      ++changed;
    }
    PENSTOCK_TRY(write(parameter, Role::weight, first, here, Dtype::fp32, bytes_at(masters.data())));
  }
  return changed;
}

Result<uint64_t> EmbeddedEngine::count(uint32_t parameter) {
  PENSTOCK_TRY(refuse_of_ranks("count"));
  PENSTOCK_TRY(check("count", parameter));
  return alone_->update_count(model_.places[parameter].id);
}

Status EmbeddedEngine::set_count(uint32_t parameter, uint64_t count) {
  PENSTOCK_TRY(refuse_of_ranks("set count"));
  PENSTOCK_TRY(check("count", parameter));
  return alone_->write_update_count(model_.places[parameter].id, count);
}

Result<uint64_t> EmbeddedEngine::keep() {
  PENSTOCK_TRY(engine_->settle());
  PENSTOCK_TRY(kept_->keep(engine_->steps_done(), {engine_->runs_of_durable_step()}).status());
  return engine_->steps_done();
}

Result<uint64_t> EmbeddedEngine::mark(uint64_t step) {
  PENSTOCK_TRY(refuse_of_ranks("mark"));
  PENSTOCK_TRY(engine_->settle());
  const Status is_kept = kept_->check(step);
  if (is_kept.ok()) return kept_->course_of(step);
  if (step == engine_->steps_done()) return alone_->course();
  return is_kept;
}

Status EmbeddedEngine::roll_back(uint64_t step) {
  PENSTOCK_TRY(kept_->check(step));
  PENSTOCK_TRY(engine_->settle());  // refused within a step
  if (alone_ != nullptr && step == engine_->steps_done()) {
    PENSTOCK_TRY_ASSIGN(kept, kept_->course_of(step));
    if (kept == alone_->course()) {
      alone_->restore_state();
      return Status();
    }
  }
  alone_ = nullptr;
  engine_.reset();
  const Status restored = kept_->restore(step);
  // What is there is opened in either case.
  reported_ = DriveBytes();
  PENSTOCK_TRY(open_store());
  return restored;
}

}  // namespace penstock::engine
